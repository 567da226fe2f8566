"""Tells a command or a webhook that another number of replicas is wanted: for clouds without an autoscaler.

One call runs at a time. What changes meanwhile is kept by model and class, the latest only, so that a slow
cloud is told what is true when its turn comes. What failed as often as it is tried is told again later, until
it succeeds, something else is wanted, or another process acts for all: that one tells whatever is wanted and
not there yet.
"""

import asyncio
import contextlib
import os
import signal
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import orjson
import structlog

from gateway.domain.webhooks import AttemptResult, webhook_headers
from gateway.scaling.verdict import ModelVerdict
from gateway.storage.errors import StateError

ATTEMPTS = 4
RETRY_S = 2.0
"""Before the second attempt; twice as long before each further one."""

RETELL_S, LONGEST_RETELL_S = 60.0, 900.0
"""After the last attempt, until the same is told again; twice as long each further time, up to the second."""

MOST_WAITING = 10_000
"""Changes of other models and classes that wait; more are dropped and logged."""

OUTPUT_CHARS = 500

_log = structlog.get_logger(__name__)

Signers = Callable[[float], Sequence[str]]
"""The secrets that sign a webhook at a time. Waits for the disk; raises StateError."""


class HookSender(Protocol):
    """See :class:`gateway.jobs.webhooks.sender.WebhookSender`."""

    async def send(self, url: str, headers: dict[str, str], body: bytes) -> AttemptResult: ...


class HookFailed(Exception):
    """A hook did not do it. The message says why."""


@dataclass(frozen=True, slots=True)
class HookSettings:
    """Whom to tell."""

    command: Sequence[str] = ()
    webhook: str | None = None
    timeout_s: float = 60.0
    retry_s: float = RETRY_S
    retell_s: float = RETELL_S


@dataclass(frozen=True, slots=True)
class _Untold:
    event: dict[str, Any]
    due_s: float
    """On the event loop's clock."""
    times: int
    """It was told again so often."""


class ScalingHooks:
    """Belongs to the event loop's thread."""

    def __init__(
        self,
        settings: HookSettings,
        owns: Callable[[], bool],
        sender: HookSender | None = None,
        signers: Signers = lambda at_s: (),
        wall: Callable[[], float] = time.time,
    ) -> None:
        """``owns``: whether this process is the one that acts for all."""
        self._settings = settings
        self._owns = owns
        self._sender = sender
        self._signers = signers
        self._wall = wall
        self._waiting: dict[tuple[str, str], dict[str, Any]] = {}
        self._failed: dict[tuple[str, str], _Untold] = {}
        """What could not be told, and is to be again."""
        self._owned = True
        self._woken = asyncio.Event()

    def changed(self, verdict: ModelVerdict, device: str, before: int, after: int) -> None:
        """Another number of replicas of a class is wanted."""
        if self._owns():
            self._enter(event_of(verdict, device, before, after))

    def decided(self, verdicts: Mapping[str, ModelVerdict]) -> None:
        """A decision was made. Who has just begun to act for all cannot know what was told before: it tells
        all that is wanted and not there."""
        owned, self._owned = self._owned, self._owns()
        if owned or not self._owned:
            return
        for verdict in verdicts.values():
            for device, each in verdict.classes.items():
                if each.wanted != each.ready:
                    self._enter(event_of(verdict, device, each.ready, each.wanted))

    async def run(self) -> None:
        """Tell until this is cancelled."""
        while True:
            while self._waiting:
                key = next(iter(self._waiting))
                await self._tell(self._waiting.pop(key))
            self._woken.clear()
            due_s = min((each.due_s for each in self._failed.values()), default=None)
            try:
                async with asyncio.timeout_at(due_s):
                    await self._woken.wait()
            except TimeoutError:
                self._tell_again()

    def _enter(self, event: dict[str, Any]) -> None:
        """It is told when its turn comes, as one change with what was not told so far."""
        key = event["model"], event["class"]
        waiting, failed = self._waiting.get(key), self._failed.pop(key, None)
        if waiting is None and len(self._waiting) + len(self._failed) >= MOST_WAITING:
            _log.warning("scaling_hook_dropped", model=key[0], device=key[1])
            return
        earlier = waiting or (None if failed is None else failed.event)
        self._waiting[key] = event if earlier is None else event | {"from": earlier["from"]}
        self._woken.set()

    def _tell_again(self) -> None:
        now = asyncio.get_running_loop().time()
        for key, each in list(self._failed.items()):
            if not self._owns():
                del self._failed[key]  # who acts now tells it
            elif each.due_s <= now:
                self._waiting.setdefault(key, each.event)

    def _fail(self, event: dict[str, Any]) -> None:
        key = event["model"], event["class"]
        if key in self._waiting:  # which is told with it as one change
            self._waiting[key] |= {"from": event["from"]}
            self._failed.pop(key, None)
            return
        times = self._failed[key].times + 1 if key in self._failed else 0
        after_s = min(LONGEST_RETELL_S, self._settings.retell_s * 2**times)
        self._failed[key] = _Untold(event, asyncio.get_running_loop().time() + after_s, min(times, 16))

    async def _tell(self, event: dict[str, Any]) -> None:
        ways: list[tuple[str, Callable[[bytes], Awaitable[None]]]] = []
        if self._settings.command:
            ways.append(("command", self._run_command))
        if self._settings.webhook is not None:
            ways.append(("webhook", self._send))
        body, about = orjson.dumps(event), {"model": event["model"], "device": event["class"]}
        failed = False
        for name, way in ways:
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    await way(body)
                except HookFailed as error:
                    if attempt == ATTEMPTS or (event["model"], event["class"]) in self._waiting:
                        _log.warning("scaling_hook_failed", **about, hook=name, error=str(error))
                        failed = True
                        break
                    await asyncio.sleep(self._settings.retry_s * 2 ** (attempt - 1))
                else:
                    _log.info("scaling_hook_told", **about, hook=name, to=event["to"])
                    break
        if failed:
            self._fail(event)
        else:
            self._failed.pop((event["model"], event["class"]), None)

    async def _run_command(self, body: bytes) -> None:
        """Raises HookFailed."""
        pipe, output = asyncio.subprocess.PIPE, asyncio.subprocess.STDOUT
        try:
            process = await asyncio.create_subprocess_exec(
                *self._settings.command, stdin=pipe, stdout=pipe, stderr=output, start_new_session=True
            )
        except (OSError, ValueError) as error:
            raise HookFailed(f"it cannot be started: {error}") from None
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                said = await _converse(process, body)
                code = await process.wait()
        except TimeoutError:
            raise HookFailed(f"it did not end within {self._settings.timeout_s:g} s") from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # with all that it has started
                await process.wait()
        if code:
            raise HookFailed(f"it ended with code {code}: {said}")

    async def _send(self, body: bytes) -> None:
        """Raises HookFailed."""
        assert self._sender is not None
        assert self._settings.webhook is not None
        at_s = self._wall()
        try:
            secrets = await asyncio.to_thread(self._signers, at_s)
        except StateError as error:
            raise HookFailed(f"it cannot be signed: {error}") from None
        if not secrets:
            raise HookFailed("no secret signs it: trunkline webhook secret create '*'")
        headers = webhook_headers(f"scl_{uuid.uuid4().hex}", body, at_s, secrets)
        result = await self._sender.send(self._settings.webhook, headers, body)
        if result.error or result.status is None or not 200 <= result.status < 300:
            raise HookFailed(result.error or f"it answered with status {result.status}")


def event_of(verdict: ModelVerdict, device: str, before: int, after: int) -> dict[str, Any]:
    """What a hook is told."""
    there = verdict.classes[device]
    return {
        "type": "scaling.wanted",
        "model": verdict.model,
        "class": device,
        "from": before,
        "to": after,
        "ready": there.ready,
        "why": verdict.why,
        "replicas": [asdict(each) for each in there.replicas],
        "ends": list(there.ends),
    }


async def _converse(process: asyncio.subprocess.Process, body: bytes) -> str:
    """Give it its input; the last of what it says, of which no more is kept."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(body)
        await process.stdin.drain()
        process.stdin.close()
    except (BrokenPipeError, ConnectionResetError):
        pass  # it need not read it
    said = b""
    while piece := await process.stdout.read(4096):
        said = (said + piece)[-OUTPUT_CHARS:]
    return said.decode(errors="replace").strip()
