"""How the workers of a gateway ask each other: over Unix sockets in the state directory, which only their own
user can reach. Who does not answer in time is named, and never left out in silence."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import structlog

from gateway.runtime.workers.sockets import short_path

DIRECTORY = "workers"
"""In the state directory."""

ANSWER_S = 2.0
"""For a sibling's whole answer."""

QUESTION_BYTES = 64 * 1024
ANSWER_BYTES = 64 * 1024 * 1024

Json = dict[str, Any]
Answerer = Callable[[Json], Awaitable[Json]]

_log = structlog.get_logger(__name__)


class SiblingSilent(Exception):
    """This worker does not answer in time."""


@dataclass(frozen=True, slots=True)
class SiblingAnswers:
    """What all others said to one question."""

    found: dict[str, Json]
    """By process."""
    missing: list[str]
    """Those that did not answer."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Why they did not, as far as that is known."""


class Siblings:
    """The other workers, as one of them sees them. Belongs to the event loop's thread."""

    def __init__(self, state_dir: Path, own: str, names: Sequence[str], answer_s: float = ANSWER_S) -> None:
        """``names`` are those of all workers, ``own`` among them."""
        self.own = own
        self.others = [name for name in names if name != own]
        self._directory = state_dir / DIRECTORY
        self._answer_s = answer_s
        self._answerers: dict[str, Answerer] = {}
        self._server: asyncio.Server | None = None

    def answer(self, question: str, answerer: Answerer) -> None:
        """Have ``answerer`` called with what came along with this question."""
        self._answerers[question] = answerer

    async def start(self) -> None:
        """Answer from now on. Raises OSError."""
        self._directory.mkdir(mode=0o700, exist_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        with self._path_of(self.own) as path:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            listener.bind(path)
            os.chmod(path, 0o600)
        self._server = await asyncio.start_unix_server(self._serve, sock=listener, limit=QUESTION_BYTES)

    def close(self) -> None:
        """Answer no more. Idempotent."""
        if self._server is not None:
            self._server.close()
            with contextlib.suppress(FileNotFoundError), self._path_of(self.own) as path:
                os.unlink(path)

    async def ask_all(self, question: str, **facts: Any) -> SiblingAnswers:
        """Ask every other worker at the same time."""
        others = list(self.others)  # there may be other ones before all have answered
        said = await asyncio.gather(*(self._ask(name, question, facts) for name in others))
        pairs = list(zip(others, said, strict=True))
        return SiblingAnswers(
            {name: answer for name, answer in pairs if answer is not None},
            [name for name, answer in pairs if answer is None],
        )

    async def ask(self, name: str, question: str, **facts: Any) -> Json:
        """Ask one other worker. Raises SiblingSilent."""
        answer = await self._ask(name, question, facts)
        if answer is None:
            raise SiblingSilent(name)
        return answer

    async def _ask(self, name: str, question: str, facts: Json) -> Json | None:
        """None: it did not answer."""
        try:
            async with asyncio.timeout(self._answer_s):
                return await self._converse(name, orjson.dumps({"question": question, **facts}) + b"\n")
        except (FileNotFoundError, ConnectionRefusedError):
            return None  # it is being started, which the supervisor logs
        except (OSError, ValueError) as error:
            _log.warning("sibling_silent", sibling=name, question=question, reason=repr(error))
            return None

    async def _converse(self, name: str, question: bytes) -> Json:
        """Raises OSError and ValueError."""
        with self._path_of(name) as path:
            reader, writer = await asyncio.open_unix_connection(path, limit=QUESTION_BYTES)
        try:
            writer.write(question)
            data = bytearray()
            while chunk := await reader.read(QUESTION_BYTES):
                data += chunk
                if len(data) > ANSWER_BYTES:
                    raise ValueError("the answer is too long")
            found: Json = orjson.loads(data)  # of nothing, where it failed at the question
            return found
        finally:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One question. What goes wrong is logged, and the asker gets no answer."""
        try:
            async with asyncio.timeout(self._answer_s):
                asked = orjson.loads(await reader.readline())
                answer = await self._answerers[asked.pop("question")](asked)
                writer.write(orjson.dumps(answer))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError):
            pass  # the asker has gone, or will have
        except Exception:
            _log.exception("sibling_not_answered")
        finally:
            writer.transport.abort()

    def _path_of(self, name: str) -> contextlib.AbstractContextManager[str]:
        return short_path(self._directory, f"{name}.sock")
