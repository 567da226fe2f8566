"""Tells a command or a webhook that another number of replicas is wanted: for clouds without an autoscaler.

One call runs at a time. What changes meanwhile is kept by model and class, the latest only, so that a slow
cloud is told what is true when its turn comes.
"""

import asyncio
import contextlib
import os
import signal
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import orjson
import structlog

from gateway.domain.webhooks import AttemptResult, webhook_headers
from gateway.scaling.verdict import ModelVerdict

ATTEMPTS = 4
RETRY_S = 2.0
"""Before the second attempt; twice as long before each further one."""

MOST_WAITING = 10_000
"""Changes of other models and classes that wait; more are dropped and logged."""

OUTPUT_CHARS = 500

_log = structlog.get_logger(__name__)

Signers = Callable[[float], Sequence[str]]
"""The secrets that sign a webhook at a time. Waits for the disk."""


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
        self._woken = asyncio.Event()

    def changed(self, verdict: ModelVerdict, device: str, before: int, after: int) -> None:
        """Another number of replicas of a class is wanted."""
        if not self._owns():
            return
        key = verdict.model, device
        waiting = self._waiting.get(key)
        if waiting is None and len(self._waiting) >= MOST_WAITING:
            _log.warning("scaling_hook_dropped", model=verdict.model, device=device)
            return
        self._waiting[key] = event_of(verdict, device, waiting["from"] if waiting else before, after)
        self._woken.set()

    async def run(self) -> None:
        """Tell until this is cancelled."""
        while True:
            while self._waiting:
                key = next(iter(self._waiting))
                await self._tell(self._waiting.pop(key))
            self._woken.clear()
            await self._woken.wait()

    async def _tell(self, event: dict[str, Any]) -> None:
        ways: list[tuple[str, Callable[[bytes], Awaitable[None]]]] = []
        if self._settings.command:
            ways.append(("command", self._run_command))
        if self._settings.webhook is not None:
            ways.append(("webhook", self._send))
        body, about = orjson.dumps(event), {"model": event["model"], "device": event["class"]}
        for name, way in ways:
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    await way(body)
                except HookFailed as error:
                    if attempt == ATTEMPTS or (event["model"], event["class"]) in self._waiting:
                        _log.warning("scaling_hook_failed", **about, hook=name, error=str(error))
                        break
                    await asyncio.sleep(self._settings.retry_s * 2 ** (attempt - 1))
                else:
                    _log.info("scaling_hook_told", **about, hook=name, to=event["to"])
                    break

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
        secrets = await asyncio.to_thread(self._signers, at_s)
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
