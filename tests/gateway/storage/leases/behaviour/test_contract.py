"""What every lease engine holds to, whatever keeps its limits."""

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.storage.leases.rules import LeaseEngine, LeaseGrant, LeaseStatement, SharedLimit

START_S = 1_795_219_200.0

whole = st.integers(0, 60).map(float)
statements = st.builds(
    LeaseStatement,
    key=st.sampled_from(["a", "b"]),
    limit=st.integers(1, 100).map(float),
    window_s=st.just(60.0),
    ttl_s=st.just(5.0),
    sequence=st.integers(1, 12),
    keep=whole,
    need=whole,
    least=whole,
    chunk=whole,
    uses=st.lists(st.tuples(st.floats(0.0, 70.0), whole), max_size=4).map(tuple),
    debt=whole,
)
quarters = st.integers(0, 200).map(lambda number: number / 4)
"""Sums of these are exact, in whatever order."""
stocks = st.builds(
    LeaseStatement,
    key=st.just("permits"),
    limit=st.integers(1, 100).map(float),
    window_s=st.just(0.0),
    ttl_s=st.just(5.0),
    sequence=st.integers(1, 12),
    keep=quarters,
    need=quarters,
    least=quarters,
    chunk=quarters,
)
budgets = st.builds(
    lambda statement, spent, acknowledged, seed: replace(
        statement, key="budget", spent=spent, acknowledged=acknowledged, seed=seed, lasts_s=1000.0
    ),
    stocks,
    quarters,
    quarters,
    st.none() | quarters,
)
steps = st.lists(
    st.tuples(
        st.sampled_from(["p", "q", "r"]),
        st.lists(statements | stocks | budgets, min_size=1, max_size=3, unique_by=lambda each: each.key),
        st.sampled_from([0.0, 0.25, 4.0, 5.0, 31.0, 65.0]),
    ),
    max_size=12,
)


class Clock:
    now = START_S

    def __call__(self) -> float:
        return self.now


def run(make: Callable[[Any], LeaseEngine], clock: Clock | None, body: Callable[[LeaseEngine], Any]) -> Any:
    async def inside() -> Any:
        engine = make(clock)
        try:
            return await body(engine)
        finally:
            await engine.close()

    return asyncio.run(inside())


def named(statement: LeaseStatement, run_name: str) -> LeaseStatement:
    return replace(statement, key=f"{run_name}{statement.key}")


def close_to(grant: LeaseGrant) -> Any:
    numbers = [pytest.approx(each, abs=1e-4) for each in grant[:3]]
    wait_s = None if grant.wait_s is None else pytest.approx(grant.wait_s, abs=1e-4)
    reset_s, spent = (pytest.approx(each, abs=1e-4) for each in (grant.reset_s, grant.spent))
    return (*numbers, wait_s, reset_s, grant.seeded, spent)


@given(steps)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_engine_answers_as_the_rules_do(
    make_engine: Callable[[Any], LeaseEngine], taken: list[tuple[str, list[LeaseStatement], float]]
) -> None:
    clock, run_name = Clock(), uuid.uuid4().hex
    rules: dict[str, SharedLimit] = {}

    async def body(engine: LeaseEngine) -> None:
        for process, said, passes_s in taken:
            clock.now += passes_s
            grants = await engine.exchange(process, [named(each, run_name) for each in said])
            expected = [
                rules.setdefault(each.key, SharedLimit()).state(process, each, clock.now) for each in said
            ]
            assert [tuple(each) for each in grants] == [close_to(each) for each in expected]

    run(make_engine, clock, body)


def rate(**values: Any) -> LeaseStatement:
    return LeaseStatement(
        **{"key": uuid.uuid4().hex, "limit": 10.0, "window_s": 60.0, "ttl_s": 5.0, **values}
    )


def test_it_keeps_time_by_itself(make_engine: Callable[[Any], LeaseEngine]) -> None:
    async def body(engine: LeaseEngine) -> None:
        first = rate(sequence=1, need=4.0, least=4.0, ttl_s=2.0, window_s=2.0)
        assert (await engine.exchange("p", [first]))[0].granted == 4.0
        second = replace(first, need=10.0, least=10.0)
        (refused,) = await engine.exchange("q", [second])
        assert (refused.granted, refused.used) == (0.0, 4.0)
        for sequence in range(2, 500):
            await asyncio.sleep(0.1)
            (grant,) = await engine.exchange("q", [replace(second, sequence=sequence)])
            if grant.granted:
                break
        assert grant.granted == 10.0

    run(make_engine, None, body)


def test_two_connections_have_one_limit(kind: str, make_engine: Callable[[Any], LeaseEngine]) -> None:
    if kind == "memory":
        pytest.skip("it has no connections")
    said = rate(need=1.0, least=1.0)

    async def body(engine: LeaseEngine) -> float:
        others = [make_engine(None) for _ in range(3)]
        try:

            async def take(each: LeaseEngine, process: str) -> float:
                granted = 0.0
                for sequence in range(1, 9):
                    statement = replace(said, sequence=sequence, keep=granted)
                    granted += (await each.exchange(process, [statement]))[0].granted
                return granted

            await engine.exchange("first", [rate()])  # makes what the engine needs
            return sum(await asyncio.gather(*[take(each, f"p{n}") for n, each in enumerate(others)]))
        finally:
            for each in others:
                await each.close()

    assert run(make_engine, None, body) == 10.0


def test_exchanges_in_opposite_orders_do_not_wait_for_each_other_for_ever(
    make_engine: Callable[[Any], LeaseEngine],
) -> None:
    keys = [uuid.uuid4().hex for _ in range(8)]

    async def body(engine: LeaseEngine) -> None:
        other = make_engine(None)
        try:

            async def many(each: LeaseEngine, process: str, order: list[str]) -> None:
                for sequence in range(1, 20):
                    await each.exchange(
                        process, [rate(key=key, sequence=sequence, need=1.0) for key in order]
                    )

            await engine.exchange("first", [rate()])
            await asyncio.gather(many(engine, "p", keys), many(other, "q", keys[::-1]))
        finally:
            await other.close()

    run(make_engine, None, body)


def test_a_statement_that_is_overtaken_changes_nothing(make_engine: Callable[[Any], LeaseEngine]) -> None:
    async def body(engine: LeaseEngine) -> None:
        key = uuid.uuid4().hex
        await engine.exchange("p", [rate(key=key, sequence=2, uses=((0.0, 9.0),))])
        (late,) = await engine.exchange("p", [rate(key=key, sequence=1, need=5.0)])
        assert late.granted == 0.0
        assert (await engine.exchange("q", [rate(key=key, sequence=1, need=2.0, least=2.0)]))[0].used == 9.0

    run(make_engine, None, body)
