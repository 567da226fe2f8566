"""One of several workers, between its supervisor and its siblings."""

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from structlog.testing import capture_logs

from gateway.api.admin.fleet import FleetAdmin
from gateway.api.server.server import GatewayServer
from gateway.app.worker import WorkerMember
from gateway.runtime.stop_signals import StopSignals
from gateway.runtime.workers.channel import (
    BEAT,
    COVER,
    END,
    LEAVE,
    PEERS,
    READY,
    RELEASE,
    SETTLED,
    STOP,
    SupervisorLink,
)
from gateway.runtime.workers.passing import ConnectionPassing
from gateway.runtime.workers.siblings import SiblingAnswers, Siblings
from tests.gateway.runtime.workers.played_worker import role

NAMES = ("h-0", "h-1")


class PlayedFleet:
    """As many agents as are said to be here and elsewhere."""

    def __init__(self, here: int, elsewhere: int) -> None:
        self.fleet = self
        self.agents_connected = here
        self.elsewhere = elsewhere
        self.looks = 0

    async def ask_all(self, question: str) -> SiblingAnswers:
        """As the siblings answer."""
        self.looks += 1
        self.agents_connected += 1
        return SiblingAnswers({"h-1": {"agents": self.elsewhere}, "h-2": {"agents": 0}}, [])


class Supervised:
    def __init__(self, state: Path, *, replaces: bool) -> None:
        self.supervisor, theirs = socket.socketpair()
        self.supervisor.setblocking(False)
        self.supervisor.sendall(role(str(state), os.getpid(), 0, NAMES, replaces=replaces).encode() + b"\n")
        self.link = SupervisorLink(theirs)
        self.siblings = Siblings(state, "h-0", NAMES)
        self.passing = ConnectionPassing(state, "h-0", lambda: self.siblings.others)
        self.member = WorkerMember(self.link, self.siblings, self.passing)
        self.stop = StopSignals(escalate=False)

    async def said(self, length: int) -> bytes:
        loop, data = asyncio.get_running_loop(), b""
        while len(data) < length:
            data += await asyncio.wait_for(loop.sock_recv(self.supervisor, 100), 60)
        return data


@pytest.fixture
def supervised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervised]:
    monkeypatch.setattr("gateway.runtime.workers.channel._end_with", lambda supervisor: None)
    monkeypatch.setattr("gateway.app.worker.SETTLE_LOOK_S", 0.0)
    made = Supervised(tmp_path, replaces=True)
    yield made
    made.member.close()
    made.supervisor.close()
    made.link.close()


async def test_one_that_replaces_another_says_when_all_agents_are_here(
    supervised: Supervised, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = PlayedFleet(here=0, elsewhere=4)
    monkeypatch.setattr(supervised.siblings, "ask_all", fleet.ask_all)
    supervised.member.report_ready(cast(FleetAdmin, fleet))
    said = b""
    while SETTLED not in said:
        said += await supervised.said(1)
    assert said.replace(BEAT, b"") == READY + SETTLED
    assert fleet.looks == 5


async def test_one_that_serves_gives_signs_of_life_until_it_ends(
    supervised: Supervised, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.app.worker.BEAT_S", 0.001)
    fleet = PlayedFleet(here=5, elsewhere=4)
    monkeypatch.setattr(supervised.siblings, "ask_all", fleet.ask_all)
    supervised.member.report_ready(cast(FleetAdmin, fleet))
    said = await supervised.said(len(READY + SETTLED + 20 * BEAT))
    assert (said.startswith(READY + BEAT), said.count(BEAT) > 15) == (True, True)
    supervised.member.close()
    assert supervised.member._beat is not None
    assert supervised.member._beat.cancelled()


async def test_it_does_what_the_supervisor_says(supervised: Supervised) -> None:
    stop, loop = supervised.stop, asyncio.get_running_loop()
    supervised.member.watch(stop)

    async def tell(what: bytes) -> None:
        supervised.supervisor.sendall(what)
        turn = loop.create_future()
        loop.call_later(0.05, turn.set_result, None)
        await turn

    await tell(PEERS + b"h-0 h-1 h-1b\n")
    assert supervised.siblings.others == ["h-1", "h-1b"]
    assert not stop.requested.is_set()
    await tell(LEAVE)
    assert (stop.requested.is_set(), stop.leaving, stop.forced.is_set()) == (True, True, False)
    await tell(STOP)
    assert not stop.forced.is_set()
    await tell(END)
    assert stop.forced.is_set()
    loop.remove_reader(supervised.link._channel)


class PlayedServer:
    """Notes what it is told to listen on and takes connections."""

    def __init__(self) -> None:
        self.covered: dict[int, list[socket.socket]] = {}
        self.told = asyncio.Queue[str]()

    async def cover(self, place: int, listener: socket.socket, plain: socket.socket | None) -> None:
        self.covered[place] = [each for each in (listener, plain) if each is not None]
        self.told.put_nowait(f"cover {place}")

    async def release(self, place: int) -> None:
        for each in self.covered.pop(place):
            each.close()
        self.told.put_nowait(f"release {place}")

    def take_over(self, connection: socket.socket, data: bytes) -> None:
        connection.close()
        self.told.put_nowait(f"take {data.decode()}")


async def test_it_accepts_for_others_and_takes_what_they_pass_on(supervised: Supervised) -> None:
    server, loop = PlayedServer(), asyncio.get_running_loop()

    async def told() -> str:
        return await asyncio.wait_for(server.told.get(), 60)

    await supervised.member.begin(cast(GatewayServer, server))
    supervised.member.watch(supervised.stop)
    with socket.create_server(("127.0.0.1", 0)) as away:
        socket.send_fds(supervised.supervisor, [COVER + b"1\n"], [away.fileno()])
        assert await told() == "cover 1"
        assert server.covered[1][0].getsockname() == away.getsockname()
        supervised.supervisor.sendall(RELEASE + b"1\n")
        assert await told() == "release 1"
    other = ConnectionPassing(supervised.siblings._directory.parent, "h-1", lambda: ["h-0"])
    client, accepted = socket.socketpair()
    with client, accepted:
        assert other.pass_on("h-0", accepted.fileno(), b"head")
    assert await told() == "take head"
    other.close()
    with capture_logs() as logs:
        supervised.supervisor.sendall(COVER + b"1\n" + RELEASE + b"7\n")  # a socket that did not come
        server.covered[7] = []
        assert await told() == "release 7"
    assert [(each["event"], each["worker"]) for each in logs] == [("worker_not_covered", 1)]
    supervised.member.close()
    loop.remove_reader(supervised.link._channel)


async def test_it_ends_at_once_when_the_supervisor_has_died(supervised: Supervised) -> None:
    supervised.member.watch(supervised.stop)
    supervised.supervisor.close()
    await asyncio.wait_for(supervised.stop.forced.wait(), 60)
