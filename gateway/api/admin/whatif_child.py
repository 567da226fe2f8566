"""Runs a what-if in a process of its own, one at a time on a host, and reads what it says.

In a thread it would keep the interpreter's lock from the event loop; the simulator, which is a program above
this API, is started by its name.
"""

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import orjson

import gateway
from gateway.api.admin.resources.resource import Json
from gateway.domain.errors import BadRequest, RecordNotFound, RequestError, StateUnavailable, WhatIfRuns
from shared.process.file_lock import FileLock
from shared.process.startup import environment_of_child

CHILD = (sys.executable, "-P", "-m", "gateway.tools.whatif.child")
"""``-P``: a package of this name in the current directory is not taken."""

LOCK = "whatif.lock"
"""In the state directory."""

LONGEST_S = 300.0
"""For a run."""

ANSWER_BYTES = 64 << 20
"""The longest line that is read."""


@dataclass(frozen=True, slots=True)
class WhatIfTask:
    """What the process is given."""

    wanted: Literal["run", "facts"]
    fleet: Json
    """:func:`gateway.app.whatif.fleet_now`."""
    body: Json
    """A :class:`gateway.api.admin.whatif_body.WhatIfBody`."""
    until_s: float
    """The end of the time that is replayed, in seconds since 1970."""
    most: int
    """Requests that are replayed."""
    log: str | None
    """The directory of the audit log; None: there are ``records``."""
    records: list[Json]
    """With the members of lines of the audit log."""


@dataclass(frozen=True)
class WhatIfRunner:
    """Starts the process. One for each gateway process; those of a host share the lock."""

    state_dir: Path
    longest_s: float = LONGEST_S

    @contextlib.contextmanager
    def place(self) -> Iterator[None]:
        """Raises WhatIfRuns while another one runs on this host."""
        try:
            lock = FileLock(self.state_dir / LOCK)
        except OSError as error:
            raise StateUnavailable(f"No what-if can be run: {error.strerror} ({self.state_dir}).") from None
        try:
            if not lock.try_take(exclusive=True):
                raise WhatIfRuns("Another what-if runs on this host. Wait for its end, or cancel it.")
            yield
        finally:
            lock.close()

    async def run(self, task: WhatIfTask) -> AsyncGenerator[Json]:
        """What it says, line by line; the last one has ``result``. The process ends with whoever reads.

        Raises BadRequest for a body that cannot be carried out, RecordNotFound where there is nothing to
        replay, StateUnavailable where it fails or takes too long.
        """
        try:
            child = await asyncio.create_subprocess_exec(
                *CHILD,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=environment_of_child(gateway),
                limit=ANSWER_BYTES,
            )
        except OSError as error:
            raise StateUnavailable(f"No process can be started for this: {error.strerror}.") from None
        try:
            async with asyncio.timeout(self.longest_s):
                async for line in _lines(child, orjson.dumps(asdict(task))):
                    yield line
        except TimeoutError:
            raise StateUnavailable(
                f"This took longer than {self.longest_s:g} s: replay fewer minutes, or export the facts and "
                "replay them elsewhere (trunkline whatif --export)."
            ) from None
        finally:
            if child.returncode is None:
                child.kill()
            await child.wait()


async def _lines(child: asyncio.subprocess.Process, task: bytes) -> AsyncGenerator[Json]:
    assert child.stdin is not None
    assert child.stdout is not None
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        child.stdin.write(task)
        await child.stdin.drain()
    child.stdin.close()
    while True:
        try:
            line = await child.stdout.readline()
        except ValueError:
            raise StateUnavailable("The answer is too long to be read.") from None
        if not line:
            code = await child.wait()
            raise StateUnavailable(
                f"The process that does this ended with {code}; the gateway's log may say why."
            )
        found: Json = orjson.loads(line)
        if "error" in found:
            raise _refusal(**found["error"])
        yield found
        if "result" in found:
            return


def _refusal(code: str, message: str, param: str | None) -> RequestError:
    text = f"{message[:1].upper()}{message[1:]}."
    if code == "nothing_to_replay":
        return RecordNotFound(text, code="nothing_to_replay")
    if code == "invalid_value":
        return BadRequest(text, param=param, code="invalid_value")
    return StateUnavailable(text)
