"""Delivers the events of webhooks: takes those that are due from the store, and notes what came of each
attempt."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import structlog

from gateway.domain.webhooks import (
    AttemptResult,
    Delivery,
    DeliveryState,
    judge_attempt,
    webhook_headers,
)
from gateway.jobs.webhooks.sender import ATTEMPT_S
from gateway.storage.errors import StateError
from gateway.storage.webhooks.events import host_of
from gateway.storage.webhooks.outbox import DeliveryClaim, WebhookOutbox
from shared.process.event_loop import wait_to_wake

_log = structlog.get_logger(__name__)

LOOK_S = 2.0
"""Between two looks for what is due: another process may have noted it, and no time is too exact here."""

LEASE_S = 4 * ATTEMPT_S
KEPT_S = 30 * 86_400.0
"""Deliveries that have ended are shown for so long."""

FORGET_S = 600.0
_FORGOTTEN_AT_ONCE = 500

OUTCOMES = {
    DeliveryState.DELIVERED: "delivered",
    DeliveryState.WAITING: "retried",
    DeliveryState.FAILED: "failed",
    DeliveryState.GONE: "gone",
}
"""As metrics call what came of an attempt."""


class EventSender(Protocol):
    """See :class:`gateway.jobs.webhooks.sender.WebhookSender`."""

    async def send(self, url: str, headers: Mapping[str, str], body: bytes) -> AttemptResult: ...


class WebhookMetrics(Protocol):
    """See :class:`gateway.observability.metrics.Metrics`."""

    def webhook_attempts(self, outcome: str, /) -> None: ...

    def webhook_s(self, outcome: str, seconds: float, /) -> None: ...


@dataclass(frozen=True, slots=True)
class DelivererBounds:
    """How many attempts are made at once, by this process."""

    most: int = 32
    per_host: int = 4
    per_tenant: int = 16


class WebhookDeliverer:
    """Belongs to the event loop's thread."""

    def __init__(
        self,
        outbox: WebhookOutbox,
        signers: Callable[[Delivery, float], Iterable[str]],
        sender: EventSender,
        metrics: WebhookMetrics,
        *,
        bounds: DelivererBounds = DelivererBounds(),
        wall: Callable[[], float] = time.time,
        chance: Callable[[], float] = random.random,
        look_s: float = LOOK_S,
    ) -> None:
        """``signers`` gives the secrets that sign a delivery at a time; it is called in another thread, and
        raises StateError."""
        self._outbox = outbox
        self._signers = signers
        self._sender = sender
        self._metrics = metrics
        self._bounds = bounds
        self._wall = wall
        self._chance = chance
        self._look_s = look_s
        self._woken = asyncio.Event()
        self._hosts, self._tenants = Counter[str](), Counter[str]()
        self._reachable = True
        self._forget_s = 0.0

    @property
    def at_once(self) -> int:
        """Attempts that are being made."""
        return self._hosts.total()

    def wake(self) -> None:
        """Something may be due: look now."""
        self._woken.set()

    async def run(self) -> None:
        """Deliver until this is cancelled. An attempt that is broken off is made again when its lease is
        over."""
        async with asyncio.TaskGroup() as attempts:
            while True:
                self._woken.clear()
                begun = await self._begin_due(attempts)
                if begun and self.at_once < self._bounds.most:
                    continue
                await self._forget_ended()
                await wait_to_wake(self._woken, self._look_s)

    async def _begin_due(self, attempts: asyncio.TaskGroup) -> int:
        """Begin the attempts that are due and for which there is room; how many."""
        room = self._bounds.most - self.at_once
        claim = DeliveryClaim(
            room,
            LEASE_S,
            self._bounds.per_host,
            self._bounds.per_tenant,
            dict(self._hosts),
            dict(self._tenants),
        )
        try:
            found = await asyncio.to_thread(self._outbox.claim, claim, self._wall())
        except StateError as error:
            self._note_state(error)
            return 0
        self._note_state(None)
        for delivery in found:
            self._hosts[host_of(delivery.event.url)] += 1
            self._tenants[delivery.event.tenant] += 1
            attempts.create_task(self._attempt(delivery))
        return len(found)

    async def _attempt(self, delivery: Delivery) -> None:
        try:
            await self._deliver(delivery)
        except StateError as error:
            self._note_state(error)
        finally:
            for counts, key in (
                (self._hosts, host_of(delivery.event.url)),
                (self._tenants, delivery.event.tenant),
            ):
                counts[key] -= 1
                if not counts[key]:
                    del counts[key]
            self.wake()

    async def _deliver(self, delivery: Delivery) -> None:
        """Raises StateError when what came of it cannot be noted: then it is made again."""
        began_s = time.monotonic()
        result = await self._send(delivery)
        now_s, took_s = self._wall(), time.monotonic() - began_s
        verdict = judge_attempt(result, delivery.attempts, now_s, self._chance())
        if not await asyncio.to_thread(self._outbox.settle, delivery, verdict, now_s):
            return
        self._metrics.webhook_attempts(OUTCOMES[verdict.state])
        self._metrics.webhook_s(OUTCOMES[verdict.state], took_s)
        about = {
            "delivery": delivery.id,
            "type": delivery.event.type,
            "object": delivery.event.object_id,
            "tenant": delivery.event.tenant,
            "host": host_of(delivery.event.url),
            "attempts": delivery.attempts,
        }
        if verdict.state is DeliveryState.FAILED:
            _log.warning("webhook_failed", **about, error=verdict.error)
        elif verdict.state is DeliveryState.WAITING:
            _log.info("webhook_retried", **about, error=verdict.error)
        else:
            _log.debug("webhook_ended", **about, state=verdict.state.value)

    async def _send(self, delivery: Delivery) -> AttemptResult:
        at_s = self._wall()
        try:
            secrets = tuple(await asyncio.to_thread(self._signers, delivery, at_s))
        except StateError as error:
            return AttemptResult(error=f"it cannot be signed: {error}")
        if not secrets:
            return AttemptResult(error="its tenant has no secret: trunkline webhook secret create TENANT")
        body = delivery.body
        headers = webhook_headers(delivery.id, body, at_s, secrets)
        return await self._sender.send(delivery.event.url, headers, body)

    async def _forget_ended(self) -> None:
        now_s = self._wall()
        if now_s < self._forget_s:
            return
        try:
            before_s = now_s - KEPT_S
            while (
                await asyncio.to_thread(self._outbox.forget_ended, before_s, _FORGOTTEN_AT_ONCE)
                == _FORGOTTEN_AT_ONCE
            ):
                pass
        except StateError as error:
            self._note_state(error)
        else:
            self._forget_s = now_s + FORGET_S

    def _note_state(self, error: StateError | None) -> None:
        """Say once that the store fails, and once that it is back."""
        if error is not None and self._reachable:
            _log.warning("webhooks_not_read", error=str(error))
        elif error is None and not self._reachable:
            _log.info("webhooks_read_again")
        self._reachable = error is None
