"""What processes tell each other fits, and what cannot be read says nothing."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cluster.knowledge.document import (
    MOST_BYTES,
    Told,
    ToldEvidence,
    ToldSpeeds,
    ToldSuspect,
    UnreadableKnowledge,
    encode,
    head,
    read,
)
from gateway.domain.request import Tier
from gateway.storage.processes import HEAD_CHARS

EVIDENCE = ToldEvidence(40, 1.5, [0.5] * 10, [0.25] * 4)


def speeds(model: str = "llama", process: str = "g1") -> ToldSpeeds:
    return ToldSpeeds(process, 3, model, "h100", EVIDENCE, None, 0.5)


def test_what_is_told_is_read() -> None:
    told = Told(
        3,
        17,
        [(4, {("llama", Tier.BATCH, "a"): 512.0, ("llama", Tier.REALTIME, "b"): -8.5}), (5, {})],
        [speeds()],
        [ToldSuspect(2, "gpu-1/llama", "status")],
    )
    assert read(encode(told)) == told


def test_the_head_tells_documents_apart() -> None:
    told = Told(2**62, 2**62)
    assert encode(told).startswith(head(2**62, 2**62))
    assert len(head(2**62, 2**62)) <= HEAD_CHARS


def test_the_largest_tenants_are_told_and_a_document_has_a_bound() -> None:
    work = {("m" * 50, Tier.STANDARD, f"{'t' * 50}{number}"): float(number) for number in range(5000)}
    told = Told(
        1,
        1,
        [(number, work) for number in range(1, 9)],
        [speeds(f"{'m' * 200}{number}") for number in range(600)],
        [ToldSuspect(1, f"{'a' * 200}/{number}") for number in range(600)],
    )
    text = encode(told)
    assert len(text.encode()) <= MOST_BYTES
    found = read(text)
    assert not found.unread
    tenants = {key[2] for _, given in found.work for key in given}
    assert len(tenants) > 20
    least = min(int(each.removeprefix("t" * 50)) for each in tenants)
    assert len(tenants) == 5000 - least, "none is told beside one with more work that is left out"
    assert len(found.speeds) > 30
    assert len(found.suspects) > 20


def test_names_that_json_cannot_say_are_left_out() -> None:
    told = Told(
        1, 1, [(1, {("\ud800", Tier.BATCH, "a"): 1.0, ("é", Tier.BATCH, "\0"): 2.0})], [speeds("\udfff")]
    )
    found = read(encode(told))
    assert found.work == [(1, {("é", Tier.BATCH, "\0"): 2.0})]
    assert not found.speeds


def test_members_of_later_versions_are_ignored() -> None:
    document = orjson.loads(encode(Told(1, 2, [], [speeds()], [ToldSuspect(1, "k")])))
    document["weather"] = {"fine": True}
    document["speeds"][0]["colour"] = "red"
    document["suspects"][0]["why"] = [1]
    assert read(orjson.dumps(document).decode()) == Told(1, 2, [], [speeds()], [ToldSuspect(1, "k")])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{",
        '{"version":1}',
        '{"version":2,"incarnation":1,"number":1}',
        '{"version":1,"incarnation":-1,"number":1}',
        '{"version":1,"incarnation":1,"number":1,"more":"' + "x" * MOST_BYTES + '"}',
    ],
)
def test_what_is_no_document_of_this_version_is_refused(text: str) -> None:
    with pytest.raises(UnreadableKnowledge):
        read(text)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("work", {"of": [["m", "urgent", "t"]], "slices": []}),
        ("work", {"of": [], "slices": [[1, [[0, 1.0]]]]}),
        ("work", {"of": [["m", "batch", "t"]], "slices": [[1, [[0, 1e300]]]]}),
        ("work", {"of": [["m", "batch", "t"]], "slices": [[-1, [[0, 1.0]]]]}),
        ("speeds", [{"process": "a"}]),
        ("speeds", 7),
        ("suspects", [{"key": "k", "number": 0}]),
        ("suspects", [{"key": "k" * 1001, "number": 1}]),
    ],
)
def test_a_part_that_cannot_be_read_says_nothing_and_the_others_count(part: str, value: object) -> None:
    document = orjson.loads(
        encode(Told(1, 2, [(1, {("m", Tier.BATCH, "t"): 1.0})], [speeds()], [ToldSuspect(1, "k")]))
    )
    document[part] = value
    found = read(orjson.dumps(document).decode())
    assert len(found.unread) == 1
    assert not getattr(found, part)
    assert sum(bool(each) for each in (found.work, found.speeds, found.suspects)) == 2


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=12,
)


@given(work=_json, speeds=_json, suspects=_json)
def test_no_garbage_raises_anything_else(work: object, speeds: object, suspects: object) -> None:
    document = {
        "version": 1,
        "incarnation": 1,
        "number": 1,
        "work": work,
        "speeds": speeds,
        "suspects": suspects,
    }
    assert read(orjson.dumps(document).decode()).number == 1


@given(text=st.text(max_size=200))
def test_no_text_raises_anything_else(text: str) -> None:
    with pytest.raises(UnreadableKnowledge):
        read(text)
