"""The compiled engine and load, against each other."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.bench.peers import tools
from tests.support.processes import House, fetch

pytestmark = pytest.mark.skipif(tools.missing() is not None, reason=str(tools.missing()))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tools.PlainEngine]:
    with House(tmp_path_factory.mktemp("engine")) as house:
        yield tools.start_engine(tools.built(), house)


def ask(engine: tools.PlainEngine, kind: str, *arguments: str) -> dict[str, Any]:
    watched = ("-P", str(engine.port), "-p", str(engine.pid))
    return tools.built().ask(kind, *watched, "-w", "0", "-d", "10", *arguments)


def test_every_answer_is_counted_and_whole(engine: tools.PlainEngine) -> None:
    seen = ask(engine, "unary", "-c", "4", "-q", "200")
    assert 200 <= seen["right"] <= 204
    assert seen["errors"] == {"status": 0, "short": 0, "connection": 0}
    assert str(engine.pid) in seen["processes"]


def test_streams_have_each_of_their_tokens(engine: tools.PlainEngine) -> None:
    seen = ask(engine, "stream", "-c", "3", "-n", "50", "-q", "30")
    assert seen["right"] >= 30
    assert seen["tokens"] >= 30 * 50
    assert seen["one_way_us"]["count"] == seen["tokens"]


def test_a_pace_is_kept_also_by_streams_that_tick_together(engine: tools.PlainEngine) -> None:
    engine.direct(interval_us=5000, step=1)
    try:
        seen = ask(engine, "stream", "-c", "4", "-n", "20", "-q", "4")
    finally:
        engine.direct(interval_us=0, step=0)
    assert seen["seconds"] >= 19 * 0.005
    assert seen["right"] >= 4


def test_large_bodies_go_both_ways_without_being_kept(engine: tools.PlainEngine) -> None:
    down = ask(engine, "down", "-c", "1", "-q", "1", "-B", "20000000", "-u", "/x/body?bytes=20000000")
    up = ask(engine, "up", "-c", "1", "-q", "1", "-B", "20000000", "-u", "/x/upload")
    assert down["right"] == up["right"] == 1
    assert down["received_bytes"] > 20_000_000
    assert up["processes"][str(engine.pid)]["peak_rss_bytes"] < 20_000_000


def test_an_answer_that_is_not_200_is_an_error_with_its_words(engine: tools.PlainEngine) -> None:
    seen = ask(engine, "down", "-c", "1", "-q", "1", "-B", "7", "-u", "/x/body?bytes=8")
    assert seen["errors"]["short"] == 1
    assert seen["right"] == 0


def test_arrivals_of_an_open_loop_come_at_their_rate(engine: tools.PlainEngine) -> None:
    seen = tools.built().ask(
        "unary", "-P", str(engine.port), "-c", "8", "-r", "2000", "-w", "0.1", "-d", "0.5"
    )
    assert 700 < seen["right"] < 1300


@pytest.mark.parametrize(("path", "models"), [("", ["fake-llm"]), ("/m/a7", ["fake-llm", "a7"])])
def test_the_engine_offers_one_model_to_all_and_one_more_by_its_path(
    engine: tools.PlainEngine, path: str, models: list[str]
) -> None:
    assert [each["id"] for each in fetch(f"{engine.url}{path}/v1/models")["data"]] == models
