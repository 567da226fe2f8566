"""GPU-seconds are shared by those that run at once."""

import random

import pytest

from shared.protocol.gpu_time import GpuClock


def test_those_that_run_at_once_share_each_second() -> None:
    clock = GpuClock()
    first = clock.start(10.0)
    second = clock.start(12.0)
    assert clock.end(first, 14.0) == pytest.approx(2.0 + 1.0)
    assert clock.end(second, 15.0) == pytest.approx(1.0 + 1.0)
    assert clock.running == 0


def test_time_in_which_nothing_ran_is_nobodys() -> None:
    clock = GpuClock()
    clock.end(clock.start(0.0), 1.0)
    assert clock.end(clock.start(100.0), 101.5) == pytest.approx(1.5)


def test_a_clock_that_goes_back_charges_nothing_for_it() -> None:
    clock = GpuClock()
    first = clock.start(10.0)
    second = clock.start(9.0)
    assert clock.end(second, 8.0) == 0.0
    assert clock.end(first, 11.0) == pytest.approx(1.0)


@pytest.mark.parametrize("gateways", [1, 4])
def test_an_engine_charges_what_gateways_would_together_see(gateways: int) -> None:
    """All together use the time in which anything ran; a gateway alone, as if it were the only one, no
    less."""
    draw, engine, now = random.Random(7), GpuClock(), 0.0
    seen = [GpuClock() for _ in range(gateways)]
    running: list[tuple[int, float, float]] = []
    used_s = seen_s = busy_s = 0.0
    for number in range(3000):
        step_s = draw.random()
        busy_s += step_s if running else 0.0
        now += step_s
        if (running and draw.random() < 0.5) or number >= 2990:
            if not running:
                continue
            gateway, started, seen_from = running.pop(draw.randrange(len(running)))
            one_s, own_s = engine.end(started, now), seen[gateway].end(seen_from, now)
            assert one_s <= own_s + 1e-9
            used_s, seen_s = used_s + one_s, seen_s + own_s
        else:
            gateway = draw.randrange(gateways)
            running.append((gateway, engine.start(now), seen[gateway].start(now)))
    while running:
        gateway, started, seen_from = running.pop()
        used_s, seen_s = used_s + engine.end(started, now), seen_s + seen[gateway].end(seen_from, now)
    assert used_s == pytest.approx(busy_s)
    assert seen_s == pytest.approx(busy_s) if gateways == 1 else seen_s > 1.5 * busy_s


def test_a_gateway_sees_what_the_agent_measures_but_for_the_way_there_and_back() -> None:
    """Each message takes up to 20 ms; requests run for 2 s on average, five at a time."""
    draw = random.Random(3)
    engine, gateway = GpuClock(), GpuClock()
    events: list[tuple[float, int, str]] = []
    at_s = 0.0
    for number in range(400):
        at_s += draw.expovariate(2.5)
        up_s, runs_s, down_s = draw.uniform(0, 0.02), draw.expovariate(0.5), draw.uniform(0, 0.02)
        events += [
            (at_s, number, "open"),
            (at_s + up_s, number, "enter"),
            (at_s + up_s + runs_s, number, "leave"),
            (at_s + up_s + runs_s + down_s, number, "closed"),
        ]
    began: dict[tuple[str, int], float] = {}
    told_s, seen_s = 0.0, 0.0
    for now, number, what in sorted(events):
        if what in ("open", "enter"):
            began[what, number] = (gateway if what == "open" else engine).start(now)
        elif what == "leave":
            told_s += engine.end(began["enter", number], now)
        else:
            seen_s += gateway.end(began["open", number], now)
    assert seen_s * 0.97 < told_s <= seen_s
