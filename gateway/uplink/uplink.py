"""The uplink: joins the parent and holds a session with each of its processes (PROTOCOL §7.6)."""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import structlog

from gateway.observability.gauges import Family
from gateway.uplink.capacity import UplinkCapacity
from gateway.uplink.runner import OUTCOMES, UplinkRunner
from shared.identity import JoinToken
from shared.identity.keys import gateway_id
from shared.link.addresses import check_peer_address, dial_settings
from shared.link.command_fence import CommandFence
from shared.link.dialer import Dial, Rejected, dial_with
from shared.link.membership import Membership, MembershipError, default_name
from shared.link.processes import GatewayProcesses
from shared.link.publisher import TICK_S, Publisher, Publishers
from shared.link.session import GatewaySession
from shared.link.state_directory import DirectoryInUse, locked_state_directory
from shared.protocol.errors import JoinTokenInvalid
from shared.protocol.peers import DECLINES, DEMAND, PROGRESS, UPLINK

_log = structlog.get_logger("gateway.uplink")

NAME_CHARS = 63
"""Of an agent's name."""

CUT_OFF_S = 1.0
"""For the parent to hear of requests that are cut off."""

HOW_TO_JOIN = (
    "this gateway has not joined the one at uplink.url yet: run `trunkline token create` on that gateway and "
    "give the token with --join, or in TRUNKLINE_GATEWAY_UPLINK__JOIN"
)

TRUST_OPTION = "uplink.ca_file, or TRUNKLINE_GATEWAY_UPLINK__CA_FILE"
"""A gateway has no --ca-file."""

OWN = "that is this gateway itself, and no gateway can be its own parent: name another one"


class UplinkUnusable(Exception):
    """The settings of the uplink cannot be used. The message says what to do."""


class UplinkInUse(UplinkUnusable):
    """Another process is the agent that this one would be."""


@dataclass(frozen=True, slots=True)
class UplinkSettings:
    """The slice of the settings that the uplink gets."""

    url: str
    state: Path
    """Where key and certificate are kept; of one process at once."""
    join: str | None = field(default=None, repr=False)
    name: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    ca_file: Path | None = None
    worker: int = 0
    """Which of several workers it is for. Each is an agent of its own; all but the first have their number
    behind their name."""

    def name_of(self, base: str) -> str:
        """What it is called where the first worker is called ``base``."""
        number = f"-{self.worker}" if self.worker else ""
        return base[: NAME_CHARS - len(number)] + number


def open_membership(settings: UplinkSettings, own_ids: frozenset[str]) -> Membership:
    """Who this gateway is to its parent. Raises UplinkUnusable."""
    try:
        if settings.join is not None:
            fingerprint = JoinToken.decode(settings.join).fingerprint
            if gateway_id(fingerprint) in own_ids:
                raise UplinkUnusable(f"the join token is of gateway {gateway_id(fingerprint)}: {OWN}")
        membership = Membership.open(
            settings.state,
            join=settings.join,
            name=None if settings.name is None else settings.name_of(settings.name),
            default_name=settings.name_of(default_name()),
            required=(UPLINK,),
            optional=(DECLINES, PROGRESS, DEMAND),
            how_to_join=HOW_TO_JOIN,
        )
    except (JoinTokenInvalid, MembershipError) as error:
        raise UplinkUnusable(str(error)) from error
    if membership.gateway in own_ids:
        raise UplinkUnusable(f"{settings.state} belongs to gateway {membership.gateway}: {OWN}")
    return membership


class Uplink:
    """Use :meth:`run` once."""

    def __init__(
        self,
        settings: UplinkSettings,
        own_ids: frozenset[str],
        make: "Callable[[Uplink], tuple[UplinkCapacity, UplinkRunner]]",
        environ: Mapping[str, str] = os.environ,
        dial_gateway: Dial | None = None,
    ) -> None:
        """``make`` makes what is offered and what answers; ``dial_gateway`` stands for real dialling in
        tests. Raises UplinkUnusable, and ConfigError for files that TLS cannot use."""
        self._settings = settings
        self._environ = environ
        self._dial_gateway = dial_gateway
        try:
            self._dialled = dial_settings(settings.url, environ, ca_file=settings.ca_file)
        except ValueError as error:
            raise UplinkUnusable(f"{settings.url!r}: {error}") from error
        self._lock = ExitStack()
        try:
            self._lock.enter_context(locked_state_directory(settings.state))
            self._membership = open_membership(settings, own_ids)
        except DirectoryInUse as error:
            raise UplinkInUse(str(error)) from error
        except MembershipError as error:
            raise UplinkUnusable(str(error)) from error
        except UplinkUnusable:
            self._lock.close()
            raise
        self.capacity, self.runner = make(self)
        self._fence = CommandFence(self.capacity.carry_out)
        self._publishers = Publishers(
            self.capacity, lambda: Publisher(self.capacity, tuple, labels=settings.labels)
        )
        self._processes = GatewayProcesses(self._membership, self._new_sessions, self._dial_at)
        self._task: asyncio.Task[None] | None = None
        self.rejected: str | None = None
        """Why the parent does not want this gateway, and will not want it later."""

    @property
    def parents(self) -> frozenset[str]:
        """The parent's id."""
        return frozenset((self._membership.gateway,))

    @property
    def name(self) -> str:
        return self._membership.name

    async def run(self) -> None:
        """Serves the parent until cancelled or :meth:`stop`. A parent that rejects this gateway is logged,
        and this returns: the gateway's own clients do not need a parent."""
        _log.info("uplink_starts", parent=self._membership.gateway, url=self._settings.url, name=self.name)
        self._task = asyncio.current_task()
        ticking = asyncio.get_running_loop().create_task(self._tick())
        try:
            await self._processes.run()
        except (Rejected, MembershipError) as error:
            self.rejected = str(error)
            _log.error("uplink_rejected", url=self._settings.url, reason=str(error))
        finally:
            ticking.cancel()
            self._lock.close()

    async def drain(self, deadline_s: float) -> None:
        """Take nothing new, tell the parent, and wait until what runs is over, for ``deadline_s`` at most."""
        self.capacity.drain()
        self._processes.drain("the gateway is stopping", deadline_s)
        try:
            async with asyncio.timeout(deadline_s):
                await self.runner.idle()
        except TimeoutError:
            _log.warning("uplink_cuts_requests", requests=self.runner.running)

    async def close(self) -> None:
        """End what still runs, and leave the parent in order."""
        if self.runner.running:
            self.runner.cut_off()
            await asyncio.sleep(CUT_OFF_S)
        self._processes.close("the gateway stopped")

    def stop(self) -> None:
        """Serve the parent no more."""
        if self._task is not None:
            self._task.cancel()

    @property
    def up(self) -> bool:
        """There is a tunnel to the parent."""
        return self._processes.any_up

    def figures(self) -> list[Family]:
        """For metrics."""
        return families(self)

    # --- Within

    def _new_sessions(self) -> tuple[Callable[[], GatewaySession], Callable[[], None]]:
        publisher, renew, slots = self._publishers.make(), self._membership.renew, self.capacity.slots

        def new_session() -> GatewaySession:
            carry_out, others = self._fence.carry_out, self.runner.others
            return GatewaySession(self.runner, publisher, carry_out, renew, slots, others)

        return new_session, lambda: self._publishers.drop(publisher)

    def _dial_at(self, process: str | None, address: str | None) -> Dial:
        if self._dial_gateway is not None:
            return self._dial_gateway
        settings = self._dialled
        if address is not None:
            check_peer_address(address, self._settings.url)
            settings = dial_settings(address, self._environ, ca_file=self._settings.ca_file)
        if process is not None:
            settings = replace(settings, url=f"{settings.url}/{process}")
        return dial_with(replace(settings, trust_option=TRUST_OPTION), time.monotonic)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._publishers.tick()


def families(uplink: Uplink | None) -> list[Family]:
    """What metrics show of an uplink; None: there is none yet."""
    up, running, counts = (0.0, 0, Counter[str]())
    if uplink is not None:
        up, running, counts = float(uplink.up), uplink.runner.running, uplink.runner.outcomes
    outcomes: dict[tuple[str, ...], float] = {(each,): counts[each] for each in OUTCOMES}
    return [
        Family("uplink_up", "Whether there is a tunnel to the parent gateway.", [], {(): up}),
        Family("uplink_running", "Requests of the parent gateway.", [], {(): running}),
        Family(
            "uplink_requests",
            "Requests of the parent gateway that are over.",
            ["outcome"],
            outcomes,
            counter=True,
        ),
    ]
