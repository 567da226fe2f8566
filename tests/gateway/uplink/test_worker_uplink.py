"""Each worker of a gateway is an agent of its own at the parent, the first one first."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog

from gateway.uplink.uplink import Uplink, UplinkInUse, UplinkSettings, UplinkUnusable
from gateway.uplink.worker_uplink import HOW_MANY, WorkerUplink, directory_of
from shared.link.membership import MEMBERSHIP_FILE


class FakeUplink:
    """Serves until it is told to end, or was rejected."""

    def __init__(self, rejected: str | None = None) -> None:
        self.rejected = rejected
        self.ran = 0
        self.drained: list[float] = []
        self.closed = False

    async def run(self) -> None:
        self.ran += 1

    async def drain(self, deadline_s: float) -> None:
        self.drained.append(deadline_s)

    async def close(self) -> None:
        self.closed = True


class Turns:
    """Each wait is a turn, in which something may happen."""

    def __init__(self, *happens: Callable[[], object]) -> None:
        self.happens = list(happens)
        self.waited = 0

    async def __call__(self, _: float) -> None:
        self.waited += 1
        assert self.happens, "it waits for ever"
        self.happens.pop(0)()


def made(
    state: Path, worker: int, make: Callable[[], object], *happens: Callable[[], object]
) -> WorkerUplink:
    settings = UplinkSettings("http://127.0.0.1:1", directory_of(state, worker), worker=worker)
    return WorkerUplink(settings, directory_of(state, 0), make, Turns(*happens))  # type: ignore[arg-type]


def join(state: Path, worker: int) -> None:
    directory_of(state, worker).mkdir()
    (directory_of(state, worker) / MEMBERSHIP_FILE).touch()


def test_all_but_the_first_have_their_number_behind_their_name_and_a_directory_of_their_own() -> None:
    first, second = (UplinkSettings("u", Path(), worker=number) for number in (0, 11))
    assert (first.name_of("region"), second.name_of("region")) == ("region", "region-11")
    assert second.name_of("x" * 63) == "x" * 60 + "-11"
    assert [directory_of(Path("s"), number).name for number in (0, 2)] == ["uplink", "uplink-2"]


async def test_the_others_join_once_the_first_has(tmp_path: Path) -> None:
    found = FakeUplink()
    uplink = made(tmp_path, 1, lambda: found, lambda: None, lambda: join(tmp_path, 0))
    assert uplink.figures()[0].values == {(): 0.0}
    await uplink.run()
    assert found.ran == 1


async def test_one_that_has_joined_before_waits_for_nobody(tmp_path: Path) -> None:
    join(tmp_path, 1)
    found = FakeUplink()
    await made(tmp_path, 1, lambda: found).run()
    assert found.ran == 1


async def test_one_that_replaces_another_waits_until_that_has_left(tmp_path: Path) -> None:
    found, tries = FakeUplink(), [UplinkInUse("it runs"), UplinkInUse("it runs")]

    def make() -> FakeUplink:
        if tries:
            raise tries.pop()
        return found

    await made(tmp_path, 0, make, lambda: None, lambda: None).run()
    assert (found.ran, tries) == (1, [])


@pytest.mark.parametrize("rejected", [True, False])
async def test_one_that_the_token_does_not_let_in_is_left_out_with_a_reason(
    tmp_path: Path, rejected: bool
) -> None:
    join(tmp_path, 0)

    def make() -> FakeUplink:
        if rejected:
            return FakeUplink("the join token is used up")
        raise UplinkUnusable("this gateway has not joined")

    with structlog.testing.capture_logs() as lines:
        await made(tmp_path, 1, make).run()
    (line,) = (each for each in lines if each["event"] == "uplink_worker_left_out")
    assert (line["worker"], HOW_MANY in line["reason"]) == (1, True)


async def test_it_drains_and_closes_what_there_is(tmp_path: Path) -> None:
    found = FakeUplink()
    uplink = made(tmp_path, 0, lambda: found)
    await uplink.run()
    await uplink.drain(3.0)
    await uplink.close()
    assert (found.drained, found.closed) == ([3.0], True)


async def test_one_that_drains_before_it_has_an_uplink_gets_none(tmp_path: Path) -> None:
    def never() -> Uplink:
        raise AssertionError("it is stopping")

    uplink = made(tmp_path, 1, never, lambda: asyncio.ensure_future(uplink.drain(1.0)), lambda: None)
    uplink._sleep = _turn_of_the_loop
    running = asyncio.create_task(uplink.run())
    await asyncio.sleep(0)
    await uplink.drain(1.0)
    await uplink.close()
    join(tmp_path, 0)
    await running


async def _turn_of_the_loop(_: float) -> None:
    await asyncio.sleep(0)


async def test_it_stops_while_it_waits(tmp_path: Path) -> None:
    uplink = made(tmp_path, 1, FakeUplink)
    uplink._sleep = _turn_of_the_loop
    running = asyncio.create_task(uplink.run())
    await asyncio.sleep(0)
    uplink.stop()
    with pytest.raises(asyncio.CancelledError):
        await running
