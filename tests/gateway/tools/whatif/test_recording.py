"""Files of facts, and what is said of bad ones."""

from pathlib import Path
from typing import Any

import pytest

from gateway.tools.whatif.recording import BadFacts, export, merged, read_facts, write_facts
from tests.gateway.tools.whatif.kit import BEGIN_S, fact, fleet_json, recording


def test_what_is_exported_is_read_as_it_was_but_for_the_tenants(tmp_path: Path) -> None:
    queue = {**fleet_json()["queue"], "weights": {"acme": 2.0}}
    path = tmp_path / "facts.jsonl"
    known = recording([fact(1.0), fact(2.0, tokens_out=None, first_s=None, outcome="refused", deployment="")])
    write_facts(path, export(known, fleet_json(queue=queue)))
    found, fleet = read_facts(path)
    assert [each.tenant for each in found.facts] == ["t1", "t1"]
    assert [each.outcome for each in found.facts] == ["answered", "refused"]
    assert found.facts[0].at_s == BEGIN_S + 1.0
    assert (found.from_s, found.seen, fleet.queue.weights) == (BEGIN_S, 2, {"t1": 2.0})
    assert "acme" not in path.read_text()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "line 1: it is no JSON object"),
        ("{}\n", "is no file of facts"),
        ('{"trunkline_facts": 1}\n', "line 1: it is no header"),
        ('{"trunkline_facts": 1}\n{"at_s": -1}\n', "line 2: "),
        ('{"trunkline_facts": 1}\n[]\n', "line 2: "),
    ],
)
def test_a_bad_file_is_refused_with_the_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "facts.jsonl"
    path.write_text(text)
    with pytest.raises(BadFacts, match=words):
        read_facts(path)


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ({"from_s": "nan"}, "no header"),
        ({"from_s": 1e300, "until_s": 1e301}, "no header"),
        ({"until_s": 1.0}, "no header"),
        ({"fleet": fleet_json(gpu_hour={"m": "inf"})}, "no header"),
        ({"fleet": fleet_json(policy="later")}, "no policy is called 'later'"),
        ({"fleet": fleet_json(policies={"m": "later"})}, "no policy is called 'later'"),
    ],
)
def test_a_header_with_what_cannot_be_replayed_is_refused(
    tmp_path: Path, header: dict[str, Any], words: str
) -> None:
    path = tmp_path / "facts.jsonl"
    exported = export(recording([fact(1.0)]), fleet_json())
    write_facts(path, {**exported, "header": {**exported["header"], **header}})
    with pytest.raises(BadFacts, match=words):
        read_facts(path)


def test_facts_of_several_gateways_come_in_order_with_their_own_tenants() -> None:
    both = merged([recording([fact(3.0)]), recording([fact(1.0), fact(9.0)], span_s=90.0)])
    assert [each.at_s - BEGIN_S for each in both.facts] == [1.0, 3.0, 9.0]
    assert [each.tenant for each in both.facts] == ["2/acme", "1/acme", "2/acme"]
    assert (both.seen, both.until_s) == (3, BEGIN_S + 90.0)
