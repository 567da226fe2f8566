"""The uplinks of a gateway of several workers: each worker is an agent of its own at the parent.

So the parent is offered the slots of all workers, and one that dies takes nothing of the others with it. The
first worker joins first, so that a token that lets in one agent makes the gateway a member. The others follow
where the token lets in more.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog

from gateway.observability.gauges import Family
from gateway.uplink.uplink import Uplink, UplinkInUse, UplinkSettings, UplinkUnusable, families
from shared.link.membership import MEMBERSHIP_FILE
from shared.process.settings import ConfigError

_log = structlog.get_logger("gateway.uplink")

LOOK_S = 0.5
"""Between two looks whether the first worker has joined, and the worker before has left."""

HOW_MANY = "the join token must let in as many agents as there are workers: trunkline token create --uses N"


def directory_of(state: Path, worker: int) -> Path:
    """Where that worker's key and certificate for the parent are."""
    return state / ("uplink" if not worker else f"uplink-{worker}")


class WorkerUplink:
    """The uplink of one worker, made when it can be. Use :meth:`run` once."""

    def __init__(
        self,
        settings: UplinkSettings,
        first: Path,
        make: Callable[[], Uplink],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """``first`` is the first worker's directory. ``make`` raises what :class:`Uplink` does."""
        self._settings = settings
        self._first = first
        self._make = make
        self._sleep = sleep
        self._uplink: Uplink | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping = False

    async def run(self) -> None:
        """Serves the parent until cancelled or :meth:`stop`, from when it can on. What cannot be is logged:
        the other workers and the gateway's own clients do not need this one's uplink."""
        self._task = asyncio.current_task()
        self._uplink = await self._opened()
        if self._uplink is None:
            return
        await self._uplink.run()
        if self._uplink.rejected is not None and self._settings.worker:
            _log.error("uplink_worker_left_out", worker=self._settings.worker, reason=HOW_MANY)

    async def drain(self, deadline_s: float) -> None:
        """As :meth:`Uplink.drain`."""
        self._stopping = True
        if self._uplink is not None:
            await self._uplink.drain(deadline_s)

    async def close(self) -> None:
        """As :meth:`Uplink.close`."""
        self._stopping = True
        if self._uplink is not None:
            await self._uplink.close()

    def stop(self) -> None:
        """Serve the parent no more."""
        if self._task is not None:
            self._task.cancel()

    def figures(self) -> list[Family]:
        """For metrics."""
        return families(self._uplink)

    async def _opened(self) -> Uplink | None:
        waits = ""
        while not self._stopping:
            try:
                if self._may_join:
                    return self._make()
                reason = "the first worker has not joined yet"
            except UplinkInUse:
                reason = "the worker before has not left yet"
            except (UplinkUnusable, ConfigError) as error:
                _log.error(
                    "uplink_worker_left_out",
                    worker=self._settings.worker,
                    reason=f"{error}; {HOW_MANY}" if self._settings.worker else str(error),
                )
                return None
            if reason != waits:
                waits = reason
                _log.info("uplink_waits", worker=self._settings.worker, reason=reason)
            await self._sleep(LOOK_S)
        return None

    @property
    def _may_join(self) -> bool:
        joined = (self._settings.state / MEMBERSHIP_FILE).exists()
        return not self._settings.worker or joined or (self._first / MEMBERSHIP_FILE).exists()
