"""A model of your own from the agent's side: its server process, and the backend that starts and uses it."""

import asyncio
import itertools
import os
import secrets
import shutil
import socket
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack
from weakref import WeakValueDictionary

import structlog
from msgspec.structs import replace

from agent.engines.backend import BackendBody, BackendRequest, ResponseReceiver
from agent.engines.command.engine import CommandProcess
from agent.engines.engine_program import EXIT_UNUSABLE
from agent.engines.http.openai import OpenAIHTTPBackend
from agent.engines.managed import LoadAttempt, ManagedBackend, Supervision
from agent.engines.model_names import deployment_id
from agent.engines.process import LINE_CHARS, EngineEnd, first_of
from agent.engines.settings import EngineSettings
from agent.engines.torch.backend import SOCKET_PATH_BYTES, engine_environment, read_log_line
from agent.serve.http import MODEL_HEADER, TAG_HEADER
from agent.serve.options import ServerOptions, read_line
from shared.protocol import limits
from shared.protocol.members import adapter_of
from shared.protocol.messages import DeploymentState, DeploymentStatus, RequestHead
from shared.protocol.progress import Preview, Progress, progress

log = structlog.get_logger("agent.model")

STOP_GRACE_S = 6.0
"""The server process gives running answers one second, and its processes half of one."""

_OUR_HEADERS = frozenset((MODEL_HEADER, TAG_HEADER))

_REFRESH_S = 2.0
"""The server process is on the same machine, so its load is read more often than another engine's."""

SCRATCH_PREFIX = "trunkline-model-"
FRESH_S = 60.0
"""A directory that another agent has just made may not be locked yet."""

LOOKS = 2
"""At an engine whose state has changed, under way or waiting for the one before."""

_MEMORY = Path("/dev/shm")  # noqa: S108  the memory file system, not a place for temporary files


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonSettings:
    """Which class is served, and where."""

    spec: str
    """``module:Class``, found from the working directory."""
    devices: tuple[str, ...] = ("auto",)


class ServerProcess(CommandProcess):
    """A model's server process behind its guard, which leaves nothing of it behind."""

    called = "the model's server"
    unrecoverable_status = EXIT_UNUSABLE
    line_chars = limits.PROGRESS_PAYLOAD_BYTES + LINE_CHARS

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.facts: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        """What its ready line says."""
        self.on_state: Callable[[], None] = lambda: None
        """Called when the process says that its state has changed."""
        self.on_step: Callable[[float | None, str], None] = lambda share, step: None
        """Called with what loading is at."""
        self.on_request_progress: Callable[[str, Progress], None] = lambda tag, told: None
        """Called when the model tells of a request, with that request's tag."""
        self._why = ""

    def _note(self, line: str) -> None:
        """Take what is of the protocol, and pass the rest on to the log: what the process logs at its level,
        what the model prints as information."""
        said = read_line(line)
        if said is None:
            level, words, name = read_log_line(line[:LINE_CHARS])
            self._last.append((level, words))
            log.log(level or _INFO, "model says", engine=self._engine, line=words, logger_name=name)
        elif "ready" in said and not self.facts.done():
            self.facts.set_result(said["ready"])
        elif "loading" in said:
            self.on_step(said["loading"].get("progress"), str(said["loading"].get("step", ""))[:100])
        elif "progress" in said:
            told = said["progress"]
            self.on_request_progress(str(told["tag"]), _progress_of(told))
        elif "state" in said:
            self.on_state()
        elif "failed" in said:
            self._why = str(said["failed"])

    def _last_words(self, status: int) -> str:
        return self._why or super()._last_words(status)


_INFO = 20


def _progress_of(told: dict[str, Any]) -> Progress:
    """What a model says, as its server process writes it. A preview that is none is left out."""
    preview = None
    if (shown := told.get("preview")) is not None:
        with suppress(ValueError):
            preview = adapter_of(Preview).validate_python(shown)
    return progress(told["fraction"], told["text"], preview)


Launch = Callable[[str, Sequence[str], Mapping[str, str], float], Awaitable[Any]]
"""Starts a :class:`ServerProcess`: the engine's name, command, environment, grace. Raises OSError."""


class PythonBackend(ManagedBackend):
    """Implements :class:`agent.engines.backend.Backend` for one model that is written as a Python class.

    What it serves is known once its class has been imported, in a process of its own; until then there are no
    deployments, unless ``models`` names them.
    """

    def __init__(
        self,
        settings: PythonSettings,
        *,
        name: str = "python",
        models: tuple[str, ...] = (),
        slots: int | None = None,
        version: str = "",
        loading: LoadAttempt | None = None,
        launch: Launch = ServerProcess.start,
        unix_sockets: bool = hasattr(socket, "AF_UNIX"),
        **supervision: Unpack[Supervision],
    ) -> None:
        self._settings = settings
        self._models = models
        self._slots = slots
        self._version = version
        self._launch = launch
        self._unix_sockets = unix_sockets
        self._tags = itertools.count(1)
        self._receivers = WeakValueDictionary[str, ResponseReceiver]()
        """Of running requests, and for a moment of those that are over."""
        self._several = False
        """The model has several names, so that it is told which was asked for."""
        known = tuple(
            DeploymentState(
                id=deployment_id(name, model), model=model, version=version, routes=("any",), slots=slots or 0
            )
            for model in models
        )
        super().__init__(name, known, loading or LoadAttempt(), **supervision)

    def request(self, head: RequestHead, body: BackendBody, receiver: ResponseReceiver) -> BackendRequest:
        """See :meth:`agent.engines.backend.Backend.request`."""
        tag = str(next(self._tags))
        ours = [(TAG_HEADER, tag)]
        if self._several:
            ours.append((MODEL_HEADER, _header_text(head.model)))
        others = [field for field in head.headers if field[0].lower() not in _OUR_HEADERS]
        request = super().request(replace(head, headers=(*others, *ours)), body, receiver)
        self._receivers[tag] = receiver
        return request

    def _note_request_progress(self, tag: str, told: Progress) -> None:
        """A model has told of the request with this tag, which may be over."""
        receiver = self._receivers.get(tag)
        if receiver is not None:
            receiver.on_progress(told)

    async def _run(self, life: AsyncExitStack) -> EngineEnd:
        directory = life.enter_context(scratch_directory(memory_directory()))
        path = directory / "engine.sock"
        by_path = self._unix_sockets and len(os.fsencode(path)) <= SOCKET_PATH_BYTES
        key = None if by_path else secrets.token_urlsafe(32)
        options = ServerOptions(
            spec=self._settings.spec,
            devices=self._settings.devices,
            scratch=directory,
            socket=path if by_path else None,
        )
        command = (sys.executable, "-P", "-m", "agent.serve", *options.arguments())
        process = await self._launch(self.name, command, engine_environment(key, os.environ), STOP_GRACE_S)
        life.push_async_callback(process.stop)
        self._process = process
        process.on_step = self._note_progress
        process.on_request_progress = self._note_request_progress
        ended = asyncio.ensure_future(process.ended())
        try:
            facts = await first_of(asyncio.shield(process.facts), asyncio.shield(ended))
            if isinstance(facts, EngineEnd):
                return facts
            await self._connect(life, process, facts, options.socket, key)
            end: EngineEnd = await ended
            return end
        finally:
            ended.cancel()

    async def _connect(
        self,
        life: AsyncExitStack,
        process: ServerProcess,
        facts: dict[str, Any],
        unix_socket: Path | None,
        key: str | None,
    ) -> None:
        """Serve through a process that is ready. Raises ValueError for another one's models."""
        names = tuple(facts["models"])
        if missing := set(self._models) - set(names):
            raise ValueError(f"the class serves {', '.join(names)}, not {', '.join(sorted(missing))}")
        port = facts.get("port")
        http = OpenAIHTTPBackend(
            EngineSettings(
                url="http://localhost" if port is None else f"http://127.0.0.1:{port}",
                name=self.name,
                unix_socket=unix_socket,
                api_key=key,
                slots=self._slots,
                models=self._models or names,
                version=self._version,
                refresh_s=_REFRESH_S,
            )
        )
        life.push_async_callback(http.close)
        await http.start()
        http.subscribe(self._changed)
        self._several = len(names) > 1
        refreshing: set[asyncio.Task[None]] = set()

        def look() -> None:
            if len(refreshing) < LOOKS:  # one under way may have seen what was before
                task = asyncio.create_task(http.refresh(), name=f"look at {self.name}")
                refreshing.add(task)
                task.add_done_callback(refreshing.discard)

        process.on_state = look
        log.info("model ready", engine=self.name, models=list(names), devices=list(facts["devices"]))
        states = http.deployments()
        if any(state.status is DeploymentStatus.LOADED for state in states):
            self._serve(http, *states)
        else:
            self._serve(http)


def memory_directory() -> Path:
    """Where shared memory is a directory, or else that of temporary files."""
    return _MEMORY if os.access(_MEMORY, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())


@contextmanager
def scratch_directory(parent: Path) -> Iterator[Path]:
    """A new directory of ours alone (mode 0700), removed at the end. It is locked for as long as this process
    lives; those of agents that were killed, which nobody holds locked, are removed before."""
    import fcntl

    directory = Path(tempfile.mkdtemp(prefix=SCRATCH_PREFIX, dir=parent))
    now_s = directory.stat().st_mtime
    for left in parent.glob(f"{SCRATCH_PREFIX}*"):
        with suppress(OSError), _locked(left, fcntl.LOCK_EX | fcntl.LOCK_NB):
            if now_s - left.stat().st_mtime > FRESH_S:
                shutil.rmtree(left, ignore_errors=True)
    try:
        with _locked(directory, fcntl.LOCK_SH):
            yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _locked(directory: Path, how: int) -> Iterator[None]:
    """Raises OSError when it is locked already, or is not ours."""
    import fcntl

    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, how)
        yield
    finally:
        os.close(descriptor)


def _header_text(model: str) -> str:
    """A model's name in a header: percent-encoded where it is not ASCII."""
    from urllib.parse import quote

    return quote(model, safe="/:@!$&'()*+,;=~ ")
