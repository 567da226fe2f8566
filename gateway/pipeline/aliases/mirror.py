"""Copies of real requests for a shadow. They never delay or fail the real ones.

A copy is a batch request of nobody's, sent only while the shadow has a slot free, and never more than a few
at once. It starts after the real one is under way. Its answer is read, timed and thrown away.
"""

import asyncio
from dataclasses import replace

from msgspec import structs

from gateway.domain.aliases import AliasMirror, AliasTarget
from gateway.domain.request import Request, RequestBody, Tier
from gateway.domain.timers import Timers
from gateway.fleet.model_index import ModelIndex
from gateway.pipeline.aliases.figures import AliasFigures
from gateway.pipeline.aliases.rewrite import rename
from gateway.pipeline.aliases.target_choice import uniform_hash
from gateway.pipeline.relay import Run
from gateway.scheduling.base import DeploymentConstraints
from shared.protocol.limits import MIB

MOST_OPEN = 16
MOST_BODY_BYTES = MIB
"""Longest body that is copied: the copy is in no budget once the real request is over."""

PATIENCE_S = 5.0
"""So long a copy waits when its slot was taken after all. Less than it takes to be let in before others."""

MOST_S = 600.0
"""A copy that takes longer is given up."""

TENANT = "(mirror)"
"""No key's tenant is called so: nobody's share of the queue pays for copies."""


class Mirrors:
    """Sends copies. Belongs to the event loop's thread, and owns the tasks that wait for their answers."""

    def __init__(self, run: Run, index: ModelIndex, figures: AliasFigures, timers: Timers) -> None:
        self._run = run
        self._index = index
        self._figures = figures
        self._timers = timers
        self.copies: set[asyncio.Task[None]] = set()
        """Under way."""
        self._stopped = False

    def offer(self, mirror: AliasMirror, request: Request, key: str) -> None:
        """Copy ``request`` if it is one of the share; ``key`` is by what its own target was chosen, so a
        session is copied whole or not at all. Returns at once, and never raises."""
        if self._stopped or uniform_hash(key, "mirror") >= mirror.share:
            return
        why_not = self._why_not(mirror.target, request)
        if why_not is not None:
            self._figures.mirrored(request.alias or "", str(mirror.target), why_not)
            return
        copy = _copy(request, mirror.target)
        task = asyncio.get_running_loop().create_task(self._send(copy, mirror.target.model))
        self.copies.add(task)
        task.add_done_callback(self.copies.discard)

    def stop(self) -> None:
        """Cancel all copies, and make no more: the gateway is to stop."""
        self._stopped = True
        for task in self.copies:
            task.cancel()

    def _why_not(self, target: AliasTarget, request: Request) -> str | None:
        if len(self.copies) >= MOST_OPEN:
            return "skipped_full"
        if request.body.rest is not None or request.body.held_bytes > MOST_BODY_BYTES:
            return "skipped_body"
        fit = DeploymentConstraints(
            request.need, version=target.version, where=request.where, agent=request.agent
        )
        return None if self._index.has_free(target.model, fit) else "skipped_busy"

    async def _send(self, copy: Request, model: str) -> None:
        """Send ``copy`` and read its answer to the end."""
        began_s, outcome = self._timers.time(), "cancelled"
        total_s: float | None = None
        task = asyncio.current_task()
        assert task is not None

        def give_up() -> None:
            if not copy.attempts:
                task.cancel()

        waiting = self._timers.call_at(began_s + PATIENCE_S, give_up)
        try:
            async with asyncio.timeout(MOST_S):
                rename(copy, model)
                response = await self._run(copy)
                try:
                    while chunks := await response.next_chunks():
                        response.consumed(sum(map(len, chunks)))
                finally:
                    response.abort()
            outcome = f"{response.status // 100}xx"
            total_s = self._timers.time() - began_s
        except Exception:  # whatever becomes of a copy concerns nobody
            outcome = "failed"
        finally:
            waiting.cancel()
            self._figures.mirrored(copy.alias or "", copy.target, outcome, total_s)


def _copy(request: Request, target: AliasTarget) -> Request:
    """It runs only where the request may. What it is for is in ``target``; it is renamed when it is sent."""
    body = request.body
    return structs.replace(
        request,
        principal=replace(request.principal, tenant=TENANT),
        body=RequestBody(body.pieces, None, body.size_bytes, body.models),
        tier=Tier.BATCH,
        deadline_s=None,
        ttft_s=None,
        attempts=[],
        troubles=None,
        failed={},
        version=target.version,
        target=str(target),
        shadow=True,
        on_progress=None,
        dispatch_trace=None,
    )
