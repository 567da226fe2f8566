"""A session with each process of a gateway, over real sockets (PROTOCOL §7.5)."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import pytest
import structlog

from agent.capacity.engine_registry import EngineRegistry
from agent.requests.runner import RequestRunner
from shared.link.addresses import dial_settings
from shared.link.dialer import Dial, dial_with
from shared.link.membership import Membership
from shared.link.processes import GatewayProcesses, chosen
from shared.link.publisher import Publisher, Publishers
from shared.link.session import GatewaySession
from shared.process.settings import ConfigError
from shared.protocol import limits
from shared.protocol.demand import Demand
from shared.protocol.errors import ErrorCode, TunnelClosed
from shared.protocol.messages import DeploymentState
from shared.protocol.others import Expected, Others
from shared.protocol.peers import DEMAND, PEERS, GatewayPeer, Peers
from tests.agent.support.canned import until
from tests.agent.support.joined import Doorman, PlayedBackend
from tests.support.identities import TOKEN
from tests.support.tunnels import Recorder, accepting, request_head

SLOTS = 4


@dataclass
class Directory:
    """What one process says of all."""

    own: GatewayPeer
    all: list[GatewayPeer]

    def peers_for(self, agent: str) -> Sequence[GatewayPeer]:
        return self.all


class Process(Doorman):
    """One process that lets agents in; ``urls`` are where it listens."""

    def __init__(self, directory: Directory) -> None:
        super().__init__()
        self.directory = directory
        self.url = ""

    @property
    def level(self) -> int:
        """What it was told last that it may have in flight."""
        said = [value for name, value in self.listener.calls if name == "slots"]
        return int(said[-1].get("d1", 0)) if said else 0

    @property
    def sessions(self) -> int:
        return self.listener.names().count("attached")


class Fleet:
    """An agent, and the processes of its gateway."""

    def __init__(self, directory: Path, base: str) -> None:
        self.membership = Membership.open(directory, join=TOKEN.encode(), name="gpu-1", default_name="x")
        self.registry = EngineRegistry()
        self.backend = PlayedBackend(DeploymentState(id="d1", model="demo", slots=SLOTS))
        self.registry.add(self.backend)
        self.publishers = Publishers(self.registry, lambda: Publisher(self.registry, lambda: ()))
        self.runner = RequestRunner(self.registry)
        self.base = base
        self.links = GatewayProcesses(self.membership, self._new_sessions, self._dial_at)

    def _new_sessions(self) -> tuple[Callable[[], GatewaySession], Callable[[], None]]:
        publisher, registry = self.publishers.make(), self.registry

        def new_session() -> GatewaySession:
            return GatewaySession(
                self.runner,
                publisher,
                registry.carry_out,
                self.membership.renew,
                registry.slots,
                self.runner.others,
            )

        return new_session, lambda: self.publishers.drop(publisher)

    def _dial_at(self, process: str | None, address: str | None) -> Dial:
        settings = dial_settings(address or self.base, {})
        if process is not None:
            settings = replace(settings, url=f"{settings.url}/{process}")
        return dial_with(settings, asyncio.get_running_loop().time)


@asynccontextmanager
async def fleet(
    directory: Path, *names: str, urls: bool = True
) -> AsyncIterator[tuple[Fleet, list[Process]]]:
    """An agent that dials the first of these processes, and knows of no other."""
    async with AsyncExitStack() as stack:
        peers: list[GatewayPeer] = []
        processes = [Process(Directory(GatewayPeer(name, 1), peers)) for name in names]
        for process in processes:
            process.url = await stack.enter_async_context(accepting(process, process.directory))
            url = process.url if urls else None
            peers.append(GatewayPeer(process.directory.own.process, 1, url))
        here = Fleet(directory, processes[0].url)
        running = asyncio.ensure_future(here.links.run())
        try:
            yield here, processes
        finally:
            here.links.close("the test is over")
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_a_session_with_each_and_no_slot_twice(tmp_path: Path) -> None:
    async with fleet(tmp_path, "a", "b", "c") as (_, processes):
        await until(lambda: [each.sessions for each in processes] == [1, 1, 1])
        await until(lambda: sorted(each.level for each in processes) == [1, 1, 2])
        for each in processes:
            levels = [value["d1"] for name, value in each.listener.calls if name == "slots"]
            assert max(levels[1:], default=0) <= SLOTS


@pytest.mark.parametrize("error", [ValueError("no address"), ConfigError("ca_file is gone")])
async def test_an_address_that_cannot_be_used_harms_no_other_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    dial_at = Fleet._dial_at

    def refusing(here: Fleet, process: str | None, address: str | None) -> Dial:
        if address is not None and address != here.base:
            raise error
        return dial_at(here, process, address)

    monkeypatch.setattr(Fleet, "_dial_at", refusing)
    with structlog.testing.capture_logs() as logs:
        async with fleet(tmp_path, "a", "b") as (here, (a, b)):
            await until(lambda: [line for line in logs if line["event"] == "address not used"])
            assert (a.sessions, b.sessions) == (1, 0)
            assert here.links.link_of("b") is not None, "it goes on trying"


async def test_slots_move_to_demand_and_back(tmp_path: Path) -> None:
    async with fleet(tmp_path, "a", "b") as (_, (a, b)):
        await until(lambda: (a.level, b.level) == (2, 2))
        a.tunnels[0].endpoint.send_demand({"demo": Demand(9)})
        await until(lambda: (a.level, b.level) == (4, 0))
        a.tunnels[0].endpoint.send_demand({})
        b.tunnels[0].endpoint.send_demand({"demo": Demand(3)})
        await until(lambda: (a.level, b.level) == (1, 3))


async def test_an_open_beyond_the_level_is_refused_and_touches_no_engine(tmp_path: Path) -> None:
    async with fleet(tmp_path, "a", "b") as (here, (a, b)):
        await until(lambda: (a.level, b.level) == (2, 2))
        answers = [Recorder() for _ in range(3)]
        for answer in answers:
            a.tunnels[0].endpoint.open(request_head(), answer)
        code, reason = await answers[2].until("reset")
        assert (code.name, "level" in reason) == ("REFUSED", True)
        assert here.registry.running == 2


async def test_when_one_dies_the_other_has_all_its_slots_at_once(tmp_path: Path) -> None:
    async with fleet(tmp_path, "a", "b") as (_, (a, b)):
        await until(lambda: (a.level, b.level) == (2, 2))
        b.tunnels[-1].endpoint.listener = None
        b.tunnels[-1].abort()
        await until(lambda: a.level == 4)


async def test_a_process_that_comes_later_is_dialled_and_one_that_goes_is_left(tmp_path: Path) -> None:
    async with fleet(tmp_path, "a", "b") as (here, (a, b)):
        await until(lambda: (a.level, b.level) == (2, 2))
        late = Process(Directory(GatewayPeer("c", 1), a.directory.all))
        async with accepting(late, late.directory) as url:
            a.directory.all.append(GatewayPeer("c", 1, url))
            a.tunnels[0].endpoint.send_peers(Peers(tuple(a.directory.all)))
            await until(lambda: late.level >= 1)
        late.tunnels[-1].abort()
        a.directory.all.pop()
        a.tunnels[0].endpoint.send_peers(Peers(tuple(a.directory.all)))
        b.tunnels[0].endpoint.send_peers(Peers(tuple(a.directory.all)))
        await until(lambda: here.links.link_of("c") is None)
        await until(lambda: a.level + b.level == SLOTS)


async def test_a_new_incarnation_ends_the_session_and_its_requests(tmp_path: Path) -> None:
    async with fleet(tmp_path, "a", "b") as (here, (a, b)):
        await until(lambda: (a.level, b.level) == (2, 2))
        b.tunnels[0].endpoint.open(request_head(), Recorder())
        await until(lambda: here.registry.running == 1)
        said = [replace(peer, incarnation=2) if peer.process == "b" else peer for peer in a.directory.all]
        b.directory.own = replace(b.directory.own, incarnation=2)
        a.tunnels[0].endpoint.send_peers(Peers(tuple(said)))
        await until(lambda: here.registry.running == 0)
        await until(lambda: b.sessions == 2)


async def test_a_path_leads_to_its_process_and_to_no_other(tmp_path: Path) -> None:
    """Both are behind one address: the first answers at it, and for a path that is not its own with 421."""
    async with fleet(tmp_path, "a", "b", urls=False) as (here, (a, b)):
        await until(lambda: a.level == SLOTS)
        here.base = b.url  # what stands in front passes on to the other one now
        await until(lambda: (a.level, b.level) == (2, 2))
        assert (a.sessions, b.sessions) == (1, 1)


async def test_the_memory_for_request_bodies_is_divided(tmp_path: Path) -> None:
    async with fleet(tmp_path, "a", "b") as (_, (a, b)):
        await until(lambda: (a.level, b.level) == (2, 2))
        first, second = (each.tunnels[0].endpoint.session._send_credit.limit for each in (a, b))
        assert (first, second) == (
            limits.UPLOAD_SESSION_WINDOW_BYTES,
            limits.UPLOAD_SESSION_WINDOW_BYTES // 2,
        )


async def test_with_a_gateway_that_is_one_process_nothing_is_shared(tmp_path: Path) -> None:
    acceptor = Doorman()
    async with accepting(acceptor) as url:
        here = Fleet(tmp_path, url)
        running = asyncio.ensure_future(here.links.run())
        assert await acceptor.listener.until("slots") == {"d1": SLOTS}
        assert len(here.registry.slots) == 0
        here.links.close("done")
        await asyncio.wait_for(running, 60)


@pytest.mark.parametrize("count", [3, 40])
def test_with_too_many_processes_those_that_rank_highest_are_taken(count: int) -> None:
    peers = [GatewayPeer(f"p{n}", 1) for n in range(count)]
    ranked = sorted((sha256(f"gpu-1\0p{n}".encode()).digest(), f"p{n}") for n in range(count))
    expected = [name for _, name in reversed(ranked)][:32]
    assert [peer.process for peer in chosen("gpu-1", peers)] == expected


def others_told(process: Process) -> list[Others]:
    return [value for name, value in process.listener.calls if name == "others"]


async def test_each_process_is_told_what_runs_for_the_others(tmp_path: Path) -> None:
    async with fleet(tmp_path, "a", "b") as (here, (a, b)):
        await until(lambda: (a.level, b.level) == (2, 2))
        expected = Expected.of(812, 160, (1, 2, 3))
        stream = a.tunnels[0].endpoint.open(request_head(deployment="d1", expected=expected), Recorder())
        stream.end()
        await until(lambda: len(others_told(b)) == 1)
        (request,) = others_told(b)[0].began
        assert (request.deployment, request.expected) == ("d1", expected)
        b.tunnels[0].abort(TunnelClosed("the line broke"))
        stream.reset(ErrorCode.CANCELLED)
        await until(lambda: here.registry.running == 0)
        await until(lambda: len(others_told(b)) == 2)
        assert others_told(b)[1] == Others(ended=(request.number,)), "over the next tunnel"
        assert not others_told(a)


async def test_of_a_process_that_is_gone_nothing_runs_any_more(tmp_path: Path) -> None:
    async with fleet(tmp_path, "a", "b") as (_, (a, b)):
        await until(lambda: (a.level, b.level) == (2, 2))
        a.tunnels[0].endpoint.open(request_head(deployment="d1"), Recorder()).end()
        await until(lambda: len(others_told(b)) == 1)
        (request,) = others_told(b)[0].began
        a.tunnels[0].endpoint.close(ErrorCode.NO_ERROR, "the process ends")
        await until(lambda: len(others_told(b)) == 2)
        assert others_told(b)[1].ended == (request.number,)


async def test_a_process_that_did_not_agree_is_told_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway of an earlier version."""
    monkeypatch.setattr("shared.handshake.gateway.CAPABILITIES", (DEMAND, PEERS))
    async with fleet(tmp_path, "a", "b") as (here, (a, b)):
        await until(lambda: (a.level, b.level) == (2, 2))
        a.tunnels[0].endpoint.open(request_head(deployment="d1"), Recorder()).end()
        await until(lambda: here.registry.running == 1)
        assert not here.runner.others.wanted
