"""The measurement runs."""

from tests.bench import limits


async def test_the_cost_of_limits_is_measured() -> None:
    figures = await limits.run(rounds=1, requests=3)
    assert set(figures) == set(limits.stages())
    assert all(cpu_us > 0 for cpu_us in figures.values())
