"""The agent tells its other sessions what it runs for one of them (PROTOCOL §4.11)."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from shared.protocol.errors import ErrorCode
from shared.protocol.other_requests import OthersTeller
from shared.protocol.others import Expected, Others
from tests.agent.support.canned import until
from tests.agent.support.joined import PlayedBackend
from tests.agent.support.requests_in import TOKEN, Set, agent_with, played
from tests.support.clock import ManualClock


class Told:
    """What the other session was told."""

    def __init__(self, here: Set) -> None:
        self.here = here
        self.said: list[Others] = []
        self.teller = OthersTeller(here.clock, here.clock.call_later, self._send)

    def _send(self, others: Others) -> int:
        self.said.append(others)
        return 100

    def pass_time(self) -> None:
        self.here.clock.advance(0.05)

    @property
    def began(self) -> list[int]:
        return [each.number for said in self.said for each in said.began]

    @property
    def first(self) -> list[int]:
        return [each for said in self.said for each in said.first]

    @property
    def ended(self) -> list[int]:
        return [each for said in self.said for each in said.ended]


@asynccontextmanager
async def two_sessions(backend: PlayedBackend) -> AsyncIterator[tuple[Set, Told]]:
    """The runner's own one, which knows nothing of OTHERS, and another that is told."""
    async with agent_with(backend, ManualClock()) as here:
        told = Told(here)
        here.runner.others.add("s", None)
        here.runner.others.add("other", told.teller)
        yield here, told


async def test_the_other_session_hears_when_it_begins_speaks_and_ends() -> None:
    backend = played()
    async with two_sessions(backend) as (here, told):
        expected = Expected.of(812, 160, (1, 2))
        _, answer = here.ask(streaming=True, expected=expected)
        await backend.begun.wait()
        told.pass_time()
        ((request,),) = [said.began for said in told.said]
        assert (request.deployment, request.read, request.expected) == ("e/m", False, expected)
        backend.response.pieces.put_nowait(TOKEN)
        await answer.until("data")
        told.pass_time()
        assert told.first == [request.number]
        backend.response.pieces.put_nowait(TOKEN)
        backend.response.pieces.put_nowait(None)
        await answer.until("end")
        told.pass_time()
        assert told.ended == [request.number]
    assert (len(told.began), len(told.first)) == (1, 1)


async def test_an_answer_in_one_piece_has_no_first_token() -> None:
    backend = played()
    async with two_sessions(backend) as (here, told):
        _, answer = here.ask(streaming=False)
        await backend.begun.wait()
        told.pass_time()
        backend.response.pieces.put_nowait(b"{}")
        await answer.until("data")
        told.pass_time()
        backend.response.pieces.put_nowait(None)
        await answer.until("end")
        told.pass_time()
    assert told.began == told.ended != []
    assert told.first == []


async def test_one_that_is_refused_never_began() -> None:
    backend = played(slots=1)
    async with two_sessions(backend) as (here, told):
        stream, _ = here.ask()
        await backend.begun.wait()
        _, answer = here.ask()
        await answer.until("reset")
        told.pass_time()
        assert len(told.began) == 1
        stream.reset(ErrorCode.CANCELLED)
        await until(lambda: here.registry.running == 0)
        told.pass_time()
        assert told.ended == told.began


async def test_a_session_that_comes_later_hears_what_runs() -> None:
    backend = played()
    async with agent_with(backend, ManualClock()) as here:
        here.runner.others.add("s", None)
        _, answer = here.ask(streaming=True)
        await backend.begun.wait()
        backend.response.pieces.put_nowait(TOKEN)
        await answer.until("data")
        here.clock.advance(3.0)
        told = Told(here)
        here.runner.others.add("other", told.teller)
        told.pass_time()
        ((request,),) = [said.began for said in told.said]
        assert (request.read, request.expected) == (True, Expected())
        assert 3.0 <= request.age_s < 3.1
        backend.response.pieces.put_nowait(None)
        await answer.until("end")
        told.pass_time()
        assert told.ended == [request.number]


async def test_with_one_session_nothing_is_kept_of_a_request() -> None:
    backend = played()
    async with agent_with(backend) as here:
        here.runner.others.add("s", Told(here).teller)
        here.ask()
        await backend.begun.wait()
        (run,) = here.runner._runs
        assert (run.told, run.on_first_token) == (None, None)
        backend.response.pieces.put_nowait(None)
        await until(lambda: here.registry.running == 0)
