"""``python -m agent.serve module:Class``: a server process loads a model, says so, serves, and ends.

Standard output carries the lines of :mod:`.options`, standard error the log. It imports nothing of the model,
so that it answers whatever the model does.
"""

import asyncio
import importlib
import logging
import os
import signal
import sys
from base64 import b64encode
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from agent.engines.engine_program import (
    EXIT_UNUSABLE,
    KEY_VARIABLE,
    http_server,
    listen,
    log_to_standard_error,
    take_standard_output,
)
from agent.engines.process import EngineEnd
from agent.serve.child import ModelProcess, Scratch
from agent.serve.http import ModelHTTP
from agent.serve.messages import ProgressReport
from agent.serve.options import ReadyLine, ServerOptions, line_of, parse
from agent.serve.server import ModelServer
from shared.process.event_loop import event_loop_factory

_log = logging.getLogger("engine")


def main(arguments: Sequence[str]) -> int:
    """Run a server to its end; returns the process's exit status."""
    options = parse(arguments)
    write = take_standard_output()
    log_to_standard_error()
    with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
        end = runner.run(_serve(options, write))
    if end is None:
        return 0
    _log.error("%s", end.reason)
    write(line_of("failed", end.reason))
    return EXIT_UNUSABLE if end.unrecoverable else 1


async def _serve(options: ServerOptions, write: Callable[[bytes], None]) -> EngineEnd | None:
    """Serve until a signal comes or the model cannot be served any more; how that came, None for a signal."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    devices = (default_device(),) if options.devices == ("auto",) else options.devices
    said = ""

    def changed() -> None:
        nonlocal said
        state = server.state()
        if server.facts is not None and state.status + state.reason != said and state.status != "BUSY":
            said = state.status + state.reason
            write(line_of("state", {"status": state.status, "reason": state.reason}))

    launch = partial(_launch, options)
    write(line_of("loading", {"step": "loading the model", "progress": None}))
    server = ModelServer(launch, Scratch(options.scratch), devices, on_change=changed)
    server.on_progress_report = partial(_write_progress, write)
    try:
        starting = asyncio.ensure_future(server.start())
        end = await _first(starting, stopped)
        return end if end is not None or stopped.is_set() else await _answer(server, options, write, stopped)
    finally:
        await server.close()


def _write_progress(write: Callable[[bytes], None], tag: str, report: ProgressReport) -> None:
    if tag:
        said: dict[str, Any] = {"tag": tag, "fraction": report.fraction, "text": report.words}
        if report.preview is not None:
            data = b64encode(report.preview).decode("ascii")
            said["preview"] = {"type": report.media_type, "data": data}
        write(line_of("progress", said))


async def _answer(
    server: ModelServer, options: ServerOptions, write: Callable[[bytes], None], stopped: asyncio.Event
) -> EngineEnd | None:
    key = os.environ.get(KEY_VARIABLE)
    listener = listen(options.socket, options.port, key)
    port = listener.getsockname()[1] if options.socket is None else None
    http = http_server(ModelHTTP(server, key if options.socket is None else None))
    serving = asyncio.ensure_future(http.serve(sockets=[listener]))
    facts = server.facts
    assert facts is not None
    names = tuple(device.device for device in server.devices)
    write(ReadyLine(models=facts.names, slots=server.slots, devices=names, port=port).line())
    end = await _first(server.ended, stopped)
    http.should_exit = True
    await serving
    if options.socket is not None:
        options.socket.unlink(missing_ok=True)
    return end


async def _first(work: "asyncio.Future[Any]", stopped: asyncio.Event) -> EngineEnd | None:
    """What ``work`` gives; None when the process is told to stop before."""
    waiting = asyncio.ensure_future(stopped.wait())
    try:
        await asyncio.wait((work, waiting), return_when=asyncio.FIRST_COMPLETED)
        end: EngineEnd | None = work.result() if work.done() else None
        return end
    finally:
        waiting.cancel()
        if not work.done():
            work.cancel()


async def _launch(options: ServerOptions, device: str) -> ModelProcess:
    return await ModelProcess.start(options.spec, device, options.scratch)


def default_device() -> str:
    """The first GPU that NVML knows and the environment does not hide, else the CPU."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return "cpu"
    try:
        pynvml = importlib.import_module("pynvml")
        pynvml.nvmlInit()
        return "cuda:0" if pynvml.nvmlDeviceGetCount() else "cpu"
    except Exception:
        return "cpu"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
