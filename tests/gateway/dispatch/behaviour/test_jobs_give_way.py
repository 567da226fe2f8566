"""Requests of jobs leave slots to those that somebody waits for, and give theirs back as soon as others want
them."""

import orjson

from gateway.dispatch.request_heads import GATHER_S
from gateway.domain.errors import QueueTimeout
from gateway.domain.request import Tier
from gateway.scheduling.interactive_reserve import WINDOW_S
from tests.gateway.dispatch.answers import quiet
from tests.gateway.dispatch.streamed_answers import answer, whole
from tests.gateway.dispatch.test_preemption import ask, fleet_of, preempted
from tests.gateway.fleet.fleet import Client, FakeAgent, Fleet


def run_job(fleet: Fleet) -> Client:
    return ask(fleet, gives_way=True)


def running(agent: FakeAgent) -> int:
    return len(agent.open_streams)


async def served(fleet: Fleet, agent: FakeAgent, count: int, per_s: float, held_s: float = 0.0) -> None:
    """So many requests that somebody waits for came and were answered, one after the other."""
    for _ in range(count):
        client = ask(fleet, Tier.STANDARD)
        fleet.advance(held_s)
        answer(agent.streams[-1])
        await whole(fleet, client)
        fleet.advance(1.0 / per_s)


def cancel(fleet: Fleet, agent: FakeAgent, jobs: list[Client]) -> None:
    """End ``jobs``, wherever they are, and see that nothing is left of them."""
    for job in jobs:
        assert job.exchange is not None
        job.exchange.cancel()
    fleet.settle()
    for stream in list(agent.open_streams):
        stream.confirm()
    quiet(fleet)


async def test_a_job_gives_way_to_any_other_request_at_once_and_goes_on_where_it_was() -> None:
    fleet, (one,) = fleet_of(1)
    job = run_job(fleet)
    for cut in (700, 400, 380, 120):  # oftener than others may be asked to
        mine = one.streams[-1]
        answer(mine, cut)
        fleet.settle()
        client = ask(fleet, Tier.STANDARD)
        assert mine.reset_code is not None
        mine.confirm()
        fleet.settle()
        answer(one.streams[-1])
        await whole(fleet, client)
        fleet.advance(10 * WINDOW_S)
        assert orjson.loads(one.streams[-1].body)["continue_final_message"] is True
    answer(one.streams[-1])
    await whole(fleet, job)
    assert preempted(fleet) == 4
    quiet(fleet)


async def test_a_batch_request_whose_client_waits_gives_way_to_realtime_ones_alone() -> None:
    fleet, (one,) = fleet_of(1)
    batch = ask(fleet)
    client = ask(fleet, Tier.STANDARD)
    fleet.advance(2.0)
    assert preempted(fleet) == 0
    answer(one.streams[0])
    await whole(fleet, batch)
    answer(one.streams[-1])
    await whole(fleet, client)
    quiet(fleet)


async def test_jobs_leave_slots_free_while_others_come_and_take_them_afterwards() -> None:
    fleet, (one,) = fleet_of(8)
    await served(fleet, one, 50, per_s=10.0)
    jobs = [run_job(fleet) for _ in range(8)]
    assert running(one) == 5  # three may come before another slot would be free
    fleet.advance(10 * WINDOW_S)
    given_up = [job for job in jobs if job.settled]
    assert [type(job.error) for job in given_up] == [QueueTimeout]  # its runner tries it again
    assert running(one) == 7
    begun = [job for job in jobs if not job.settled] + [run_job(fleet)]
    assert running(one) == 8
    for stream in list(one.open_streams):
        answer(stream)
    for job in begun:
        await whole(fleet, job)
    quiet(fleet)


async def test_as_many_jobs_give_way_as_slots_are_to_be_free_again() -> None:
    fleet, (one,) = fleet_of(8)
    jobs = [run_job(fleet) for _ in range(8)]
    for stream in list(one.open_streams):
        answer(stream, 100)
    fleet.settle()
    client = ask(fleet, Tier.STANDARD)
    assert preempted(fleet) == 1
    one.streams[7].confirm()
    fleet.settle()
    assert running(one) == 8
    fleet.advance(0.1)
    assert preempted(fleet) == 3  # one slot for the request, and two for those that may come soon
    fleet.settle()
    for stream in list(one.open_streams):
        if stream.reset_code is not None:
            stream.confirm()
    answer(one.streams[8])
    await whole(fleet, client)
    for job in jobs:
        job.response.abort()
    fleet.settle()
    for stream in list(one.open_streams):
        stream.confirm()
    quiet(fleet)


async def test_a_request_that_finds_a_slot_leaves_before_jobs_give_way_for_the_next_one() -> None:
    fleet, (one,) = fleet_of(8)
    await served(fleet, one, 50, per_s=10.0)
    jobs = [run_job(fleet) for _ in range(8)]
    for stream in list(one.open_streams):
        answer(stream, 100)
    fleet.settle()
    gave_way: list[float] = []

    def flush_at_turn_end() -> None:
        fleet.loop.call_soon(lambda: gave_way.append(preempted(fleet)))

    fleet.session(one).endpoint.wake = flush_at_turn_end
    client = ask(fleet, Tier.STANDARD)
    assert gave_way[0] == 0  # when the request's frames left
    assert preempted(fleet) == 1
    answer(one.streams[-1])
    await whole(fleet, client)
    for job in jobs:
        if job.settled:
            job.response.abort()
        else:
            job.cancel()
    fleet.settle()
    for stream in list(one.open_streams):
        stream.confirm()
    quiet(fleet)


async def test_jobs_do_not_begin_in_slots_for_which_others_wait() -> None:
    fleet, (one,) = fleet_of(2)
    clients = [ask(fleet, Tier.STANDARD) for _ in range(3)]
    job = run_job(fleet)
    answer(one.streams[0])
    await whole(fleet, clients[0])
    assert running(one) == 2
    assert preempted(fleet) == 0
    answer(one.streams[1])
    await whole(fleet, clients[1])
    answer(one.streams[2])
    await whole(fleet, clients[2])
    fleet.advance(10 * WINDOW_S)
    answer(one.streams[3])
    await whole(fleet, job)
    quiet(fleet)


async def test_after_a_job_gave_way_one_more_begins_only_after_a_pause() -> None:
    fleet, (one,) = fleet_of(8)
    await served(fleet, one, 50, per_s=10.0, held_s=1.0)
    jobs = [run_job(fleet) for _ in range(8)]
    for stream in list(one.open_streams):
        answer(stream, 100)
    fleet.settle()
    assert running(one) == 7  # one slot is kept
    client = ask(fleet, Tier.STANDARD)
    assert preempted(fleet) == 1
    next(stream for stream in one.streams if stream.reset_code is not None).confirm()
    fleet.settle()
    answer(one.streams[-1])
    await whole(fleet, client)
    assert running(one) == 6  # though there is a slot more than is kept
    fleet.advance(0.8)  # less than a request takes
    assert running(one) == 6
    fleet.advance(0.8)
    assert running(one) == 7
    cancel(fleet, one, jobs)


async def test_jobs_that_could_not_give_way_again_leave_more_slots() -> None:
    fleet, (one,) = fleet_of(8, max_preemptions=0)  # as where no engine can go on with an answer
    await served(fleet, one, 50, per_s=10.0, held_s=0.3)
    jobs = [run_job(fleet) for _ in range(8)]
    assert running(one) == 2  # others would leave two slots
    client = ask(fleet, Tier.STANDARD)
    assert running(one) == 3
    assert preempted(fleet) == 0
    answer(one.streams[-1])
    await whole(fleet, client)
    cancel(fleet, one, jobs)


async def test_answers_that_nobody_reads_before_they_are_whole_may_come_in_few_pieces() -> None:
    class Output:
        """Keeps the events of an answer."""

    fleet, (one,) = fleet_of(2)
    ask(fleet, streamed_output=Output())
    ask(fleet)
    assert [stream.head.gather_s for stream in one.streams] == [GATHER_S, None]
