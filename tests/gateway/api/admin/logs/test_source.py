"""Lines of one process that are wanted."""

import pytest

from gateway.api.admin.logs import source as module
from gateway.api.admin.logs.line_filter import LineFilter
from gateway.api.admin.logs.source import LogSource
from gateway.observability.log_ring import LogRing

EVEN = LineFilter.read({"id": "0", "lines": "3"})


def source_of(count: int) -> LogSource:
    """Of lines whose ids are 0 and 1 in turns."""
    ring = LogRing(1_000_000)
    ring.add(b"".join(b'{"id":"%d","n":%d}\n' % (number % 2, number) for number in range(count)), count)
    return LogSource(ring)


def numbers(lines: list[bytes]) -> list[int]:
    return [int(line.split(b'"n":')[1].rstrip(b"}")) for line in lines]


@pytest.mark.parametrize("at_once", [1, 7, 2000])
async def test_the_last_ones_that_are_wanted_are_found(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AT_ONCE", at_once)
    source = source_of(20)
    found = await source.before(EVEN)
    assert (numbers(found.lines), found.position, found.dropped) == ([14, 16, 18], source.ring.end, 0)
    nothing = await source.before(LineFilter.read({"lines": "0"}))
    assert (nothing.lines, nothing.position) == ([], source.ring.end)


async def test_behind_a_position_all_are_found_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AT_ONCE", 4)
    monkeypatch.setattr(module, "ANSWER_LINES", 4)
    source = source_of(20)
    start = source.ring.end._replace(number=2)
    first = await source.after(start, EVEN)
    assert (numbers(first.lines), first.more) == ([2, 4, 6, 8], True)
    second = await source.after(first.position, EVEN)
    third = await source.after(second.position, EVEN)
    assert numbers(second.lines + third.lines) == [10, 12, 14, 16, 18]
    assert (third.more, third.position) == (False, source.ring.end)


async def test_of_a_process_that_was_not_known_everything_is_told() -> None:
    assert len((await source_of(20).after(None, EVEN)).lines) == 10
