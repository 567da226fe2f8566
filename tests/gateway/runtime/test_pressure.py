"""Short of memory: large bodies are refused first, then all, and nobody is for what is not known."""

from pathlib import Path
from typing import Any

import pytest
import structlog

from gateway.api.exchange.buffers import BodyReservation, BufferBudget
from gateway.domain.errors import Overloaded
from gateway.observability.metrics import Metrics
from gateway.runtime.pressure import SMALL_BYTES, Level, MemoryReader, MemoryReading, Pressure

GIB = 1024**3
LARGE = SMALL_BYTES + 1


class House:
    def __init__(self) -> None:
        self.metrics = Metrics()
        self.pressure = Pressure(self.metrics, 0.9)

    def full(self, percent: float, stalled: float = 0.0) -> Level:
        self.pressure.read([MemoryReading(int(percent * GIB / 100), GIB, stalled)])
        return self.pressure.level

    @property
    def trouble(self) -> float | None:
        return self.metrics.registry.get_sample_value("trunkline_machine_trouble", {"trouble": "memory"})


@pytest.fixture
def house() -> House:
    return House()


def events(logs: list[Any]) -> list[str]:
    return [entry["event"] for entry in logs]


def test_large_bodies_are_refused_first_and_then_all(house: House) -> None:
    assert house.full(89) is Level.FINE
    house.pressure.check(LARGE)
    assert house.full(91) is Level.SHORT
    house.pressure.check(SMALL_BYTES)
    with pytest.raises(Overloaded) as caught:
        house.pressure.check(LARGE)
    assert (caught.value.status, caught.value.code, caught.value.retry_after_s) == (503, "overloaded", 5.0)
    assert house.full(96) is Level.CRITICAL
    with pytest.raises(Overloaded):
        house.pressure.check(1)


def test_a_level_ends_well_below_where_it_begins(house: House) -> None:
    steps = [(96, 2), (94, 2), (93, 2), (91, 1), (89, 1), (88, 1), (86, 0), (88, 0)]
    assert [(percent, house.full(percent)) for percent, _ in steps] == steps


def test_it_is_told_once_when_it_begins_and_once_when_it_is_over(house: House) -> None:
    with structlog.testing.capture_logs() as logs:
        for percent in (50, 91, 96, 92, 99, 91):
            house.full(percent)
        assert house.trouble == 1
        for percent in (80, 50):
            house.full(percent)
    assert house.trouble == 0
    assert events(logs) == ["memory_short", "memory_back"]
    assert logs[0]["limit_bytes"] == GIB


def test_waiting_for_memory_is_being_short_of_it(house: House) -> None:
    assert house.full(50, stalled=0.19) is Level.FINE
    assert house.full(50, stalled=0.25) is Level.SHORT
    assert house.full(50, stalled=0.15) is Level.SHORT
    assert house.full(50, stalled=0.05) is Level.FINE


def test_of_a_large_machine_a_small_part_is_room_enough(house: House) -> None:
    house.pressure.read([MemoryReading(480 * GIB, 512 * GIB)])
    house.pressure.check(LARGE)
    house.pressure.read([MemoryReading(510 * GIB + GIB // 2, 512 * GIB)])
    with pytest.raises(Overloaded):
        house.pressure.check(LARGE)


def test_the_tightest_bound_counts(house: House) -> None:
    house.pressure.read([MemoryReading(GIB // 2, GIB), MemoryReading(98, 100), MemoryReading(1, 100)])
    assert house.pressure.level is Level.CRITICAL


def test_what_cannot_be_read_is_no_pressure(house: House) -> None:
    house.full(99)
    house.pressure.read([])
    assert house.pressure.level is Level.FINE


def test_a_body_that_grows_is_refused_as_well(house: House) -> None:
    body = BodyReservation(BufferBudget(GIB, house.pressure.check))
    body.grow(1000)
    house.full(91)
    body.grow(SMALL_BYTES)
    with pytest.raises(Overloaded):
        body.grow(LARGE)
    body.release()


# --- Reading ---


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


MEMINFO = "MemTotal:  1000 kB\nMemFree:  10 kB\nMemAvailable:  400 kB\nHugePages_Total:  0\n"
PSI = "some avg10=50.00 avg60=1.00 avg300=0.00 total=1\nfull avg10=25.00 avg60=1.00 avg300=0.00 total=1\n"


def test_control_groups_and_the_machine_are_read(tmp_path: Path) -> None:
    group = "sys__fs__cgroup__pod"
    write(tmp_path, proc__self__cgroup="4:memory:/old\n0::/pod/box\n", proc__meminfo=MEMINFO)
    write(tmp_path, **{f"{group}__memory_DOT_max": "2000\n", f"{group}__memory_DOT_current": "1800\n"})
    write(
        tmp_path, **{f"{group}__box__memory_DOT_max": "max\n", f"{group}__box__memory_DOT_current": "900\n"}
    )
    write(tmp_path, **{f"{group}__memory_DOT_stat": "anon 1\ninactive_file 600\n"})
    write(tmp_path, **{f"{group}__memory_DOT_pressure": PSI})
    assert MemoryReader(tmp_path)() == [
        MemoryReading(1200, 2000, 0.25),
        MemoryReading(600 * 1024, 1000 * 1024),
    ]


def test_in_a_container_the_bound_is_at_the_root(tmp_path: Path) -> None:
    write(tmp_path, proc__self__cgroup="0::/\n")
    names = {"max": "1000", "current": "500", "stat": "inactive_file 100"}
    write(tmp_path, **{f"sys__fs__cgroup__memory_DOT_{name}": text for name, text in names.items()})
    assert MemoryReader(tmp_path)() == [MemoryReading(400, 1000)]


@pytest.mark.parametrize("text", ["", "rubbish", "MemTotal: x kB", "MemTotal:\n", "MemTotal: 5 kB"])
def test_nonsense_reads_as_nothing(tmp_path: Path, text: str) -> None:
    write(tmp_path, proc__self__cgroup=text, proc__meminfo=text)
    assert MemoryReader(tmp_path)() == []


def test_without_linux_there_is_nothing_to_read(tmp_path: Path) -> None:
    assert MemoryReader(tmp_path)() == []


def test_this_machine_can_be_read() -> None:
    for reading in MemoryReader()():
        assert 0 <= reading.used_bytes <= reading.limit_bytes
        assert 0 <= reading.stalled <= 1
