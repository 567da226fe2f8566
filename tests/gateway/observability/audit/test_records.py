"""The line that is made of a request at once says what the one made of its facts says."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.quotas import FREE, Price
from gateway.domain.request import Tier
from gateway.observability.audit.records import (
    LINE_BYTES,
    START,
    AuditEntry,
    RequestFacts,
    facts_of,
    lines_of,
)
from shared.protocol.messages import Usage

_SECONDS = st.floats(0.0, 1e6)
_TEXT = st.text(max_size=8)
_COUNTS = st.integers(0, 2**40)

_FACTS = st.builds(
    RequestFacts,
    at_s=st.floats(0.0, 4e9),
    id=_TEXT,
    status=st.integers(100, 599),
    error=st.none() | _TEXT,
    key_id=_TEXT,
    tenant=_TEXT,
    route=_TEXT,
    model=st.none() | _TEXT,
    alias=st.none() | _TEXT,
    target=_TEXT,
    version=st.none() | _TEXT,
    tier=st.none() | st.sampled_from(list(Tier)),
    deployments=st.lists(st.sampled_from(["a/0", "b/0"]), max_size=3) | st.just(()),
    troubles=st.none() | st.lists(st.tuples(st.sampled_from(["a/0", "b/0"]), _TEXT), max_size=3),
    queue_s=st.none() | _SECONDS,
    first_byte_s=st.none() | _SECONDS,
    total_s=_SECONDS,
    usage=st.none() | st.builds(Usage, _COUNTS, _COUNTS, _COUNTS),
    gpu_s=st.just(0.0) | _SECONDS,
    price=st.sampled_from([None, FREE, Price(), Price(1.0, 2.0, 0.5)]),
    ran_by=st.just("") | _TEXT,
    device=_TEXT,
)


def _as_entry(facts: RequestFacts) -> AuditEntry:
    return AuditEntry(facts.at_s, "request", facts_of(facts))


@given(st.lists(_FACTS, max_size=3))
def test_lines_made_at_once_are_those_made_of_facts(facts: list[RequestFacts]) -> None:
    at_once, *ends = lines_of([each.line() for each in facts], 7, START)
    later, *their_ends = lines_of(map(_as_entry, facts), 7, START)
    assert [list(orjson.loads(line).items()) for line in at_once.splitlines()] == [
        list(orjson.loads(line).items()) for line in later.splitlines()
    ]
    assert at_once == later
    assert ends == their_ends


@pytest.mark.parametrize(
    "odd",
    [
        {"tenant": "\ud800"},
        {"model": "m" * LINE_BYTES},
        {"model": '"' * (LINE_BYTES // 2)},
    ],
    ids=["no Unicode", "too long", "too long as JSON"],
)
def test_what_makes_no_line_at_once_makes_a_shortened_one_later(odd: dict[str, Any]) -> None:
    names = ("key_1", "t", "chat", "m", None, "", "v1")
    usual = RequestFacts(
        1000.0, "r1", 200, None, *names, Tier.BATCH, ["a/0"], None, 0.0, 0.5, 1.0, None, 0.0, None
    )
    assert isinstance(usual.line(), bytes)
    facts = RequestFacts(**({name: getattr(usual, name) for name in usual.__struct_fields__} | odd))
    line = facts.line()
    assert isinstance(line, AuditEntry)
    lines, seq, _ = lines_of([line], 0, START)
    assert (seq, orjson.loads(lines)["shortened"], orjson.loads(lines)["id"]) == (1, True, "r1")
    assert len(lines) <= LINE_BYTES
