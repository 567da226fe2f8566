import json
import time
from dataclasses import replace
from pathlib import Path

from gateway.auth import KeyRing
from gateway.storage import Store
from tests.bench import crowd
from tests.bench.growth import Growth
from tests.bench.memory import Memory
from tests.bench.scale import Point, Scaling, Sizes, make_keys, missing
from tests.chaos.sampling import Drift


def test_a_cost_is_flat_when_its_dearest_is_near_its_cheapest() -> None:
    seen = Scaling(
        {
            "flat": [Point(1, 10.0, 1.0, 5.0), Point(9, 12.0, 1.0, 5.0)],
            "steep": [Point(1, 10.0, 1.0, 5.0), Point(9, 20.0, 1.0, 5.0)],
        }
    )
    flat, steep = (line for line in str(seen).splitlines() if "dearest" in line)
    assert "1.20 ×" in flat
    assert "NOT FLAT" not in flat
    assert "NOT FLAT" in steep
    assert json.loads(seen.to_json())["ratios"] == {"flat": 1.2, "steep": 2.0}


def test_memory_is_told_by_the_piece() -> None:
    mib = 2**20
    seen = Memory(
        10, 100, 1000, 1000, 50 * mib, 60 * mib, 160 * mib, 60 * mib, 1060 * mib, 90 * mib, 1090 * mib
    )
    assert (seen.per_tunnel_bytes, seen.per_client_bytes, seen.per_stream_bytes) == (mib, mib, mib)
    assert not seen.met
    assert "MISSED" in str(seen)
    assert json.loads(seen.to_json())["per_agent_stream_bytes"] == mib


def test_growth_is_met_when_nothing_grew_and_nothing_failed() -> None:
    steady = Drift("gateway", 0.01, 2**20, 0, 60.0)
    assert Growth(60.0, 100, 0, 0.5, [steady]).met
    assert not Growth(60.0, 100, 1, 0.5, [steady]).met
    assert not Growth(60.0, 100, 0, 0.5, [steady, replace(steady, rss=0.06)]).met
    assert not Growth(60.0, 100, 0, 0.5, [replace(steady, descriptors=30)]).met
    assert not Growth(60.0, 100, 0, 0.5, []).met, "nothing was looked at"


def test_keys_made_in_bulk_are_keys_like_others(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        mine = store.keys.create("mine", "tests", time.time())
    make_keys(tmp_path, 500)
    with Store.open(tmp_path) as store:
        ring = KeyRing(store)
        assert len(ring) == 501
        assert ring.authenticate(mine).key_name == "mine"


def test_what_cannot_be_run_here_is_said_with_its_numbers() -> None:
    assert missing(Sizes((), (), (1,))) is None
    said = crowd.may_open(2**40)
    assert said is not None
    assert str(2**40) in said
