"""``python -m agent.engines.torch``: an engine process loads, reports that, serves, and ends with its agent.

Standard output carries a line of JSON for each step of loading and one when the engine is ready
(:mod:`.startup`); standard error the log; standard input, with ``--exit-with-parent``, only its end.
"""

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from agent.engines.engine_program import (
    EXIT_UNUSABLE,
    KEY_VARIABLE,
    http_server,
    listen,
    log_to_standard_error,
    take_standard_output,
)
from agent.engines.torch.errors import ModelUnusable
from agent.engines.torch.lean_imports import import_transformers
from agent.engines.torch.startup import (
    IMPORTING,
    NOT_INSTALLED,
    EngineOptions,
    LoadProgress,
    parse,
)
from shared.process.event_loop import event_loop_factory
from shared.process.startup import without_collection

if TYPE_CHECKING:
    from agent.engines.torch.engine import TorchEngine

_log = logging.getLogger("engine")

_HALT_S = 3.0
_MOST_THREADS = 8
"""A small model on more threads spends its time in waiting for them."""
_SWITCH_S = 0.001
"""How long the computing thread may keep the interpreter from the event loop; Python's own 5 ms show in the
gaps between tokens."""


def main(arguments: Sequence[str]) -> int:
    """Run an engine to its end; returns the process's exit status."""
    options = parse(arguments)
    write = take_standard_output()
    _set_environment(options)
    log_to_standard_error()
    if options.exit_with_parent:
        _end_with_parent(options.socket)
    sys.setswitchinterval(_SWITCH_S)
    try:
        engine = _load(options, LoadProgress(write))
    except ModelUnusable as error:
        _log.error("%s", error)
        return EXIT_UNUSABLE
    try:
        with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
            return runner.run(_serve(engine, options, write))
    finally:
        if not engine.stop(_HALT_S):
            _log.warning("the computing thread did not end; leaving it behind")
            os._exit(1)


def _load(options: EngineOptions, progress: LoadProgress) -> "TorchEngine":
    progress.report(IMPORTING)
    try:
        return _load_by(options, progress)
    except ImportError as error:
        raise ModelUnusable(f"{NOT_INSTALLED} ({error})") from error


def _load_by(options: EngineOptions, progress: LoadProgress) -> "TorchEngine":
    # After the environment is set. To look for garbage would take a quarter of the time of these imports;
    # afterwards it is looked for as often as ever, since it may hold tensors.
    with without_collection(gc.get_threshold()):
        import_transformers()
        from transformers.utils import logging as library

        from agent.engines.torch.engine import TorchEngine

    library.disable_progress_bar()  # type: ignore[no-untyped-call]
    library.disable_default_handler()
    library.enable_propagation()
    batching = logging.getLogger("ContinuousBatchingLogger")
    batching.handlers.clear()
    batching.propagate = True
    batching.setLevel(logging.WARNING)
    library.set_tqdm_hook(progress.bar)
    return TorchEngine.load(options, progress.report)


async def _serve(engine: "TorchEngine", options: EngineOptions, write: Callable[[bytes], None]) -> int:
    from agent.engines.torch.http import EngineHTTP

    listener = listen(options.socket, options.port, os.environ.get(KEY_VARIABLE))
    server = http_server(EngineHTTP(engine, os.environ.get(KEY_VARIABLE)).app())

    def stop(number: int, frame: object) -> None:
        """Before uvicorn hears signals itself, and once more behind that: it raises them again when it has
        served, and there is still to clean up then."""
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)

    def failed(reason: str) -> None:
        _log.critical("%s", reason)
        server.should_exit = True

    engine.start(failed)
    port = listener.getsockname()[1] if options.socket is None else None
    write(replace(engine.facts, port=port).line())
    try:
        await server.serve(sockets=[listener])
    finally:
        if options.socket is not None:
            options.socket.unlink(missing_ok=True)
    return 0 if engine.failure is None else 1


def _set_environment(options: EngineOptions) -> None:
    """What torch and transformers read when they are imported."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    # One CPU is left to the event loops of engine and agent: threads of a computation that take turns on one
    # CPU wait for each other in loops, and a step takes a hundred times as long.
    threads = str(options.threads or max(1, min(_MOST_THREADS, cpus - 1)))
    os.environ.update(
        HF_HUB_OFFLINE="1",
        HF_HUB_DISABLE_TELEMETRY="1",
        TRANSFORMERS_NO_ADVISORY_WARNINGS="1",
        TOKENIZERS_PARALLELISM="false",
        OMP_NUM_THREADS=threads,
        MKL_NUM_THREADS=threads,
    )


def _end_with_parent(path: Path | None) -> None:
    """End the process at once when standard input ends: the agent that started it is gone."""

    def watch() -> None:
        with suppress(OSError):
            while os.read(0, 4096):
                pass
        if path is not None:
            with suppress(OSError):
                path.unlink(missing_ok=True)
                path.parent.rmdir()  # made for the socket, and if not, it is hardly empty
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
