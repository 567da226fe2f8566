"""What runs for other processes as OTHERS says it, and what OPEN says is expected (PROTOCOL §4.1, §4.11)."""

from base64 import b64encode
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.protocol import limits
from shared.protocol.errors import FrameMalformed
from shared.protocol.messages import RequestHead
from shared.protocol.others import (
    Expected,
    OtherRequest,
    Others,
    decode_fingerprints,
    encode_fingerprints,
)
from tests.support.frame_vectors import EXPECTING, OTHERS

NUMBERS = st.integers(0, 2**53)
CHAINS = st.lists(st.integers(0, 2**64 - 1), max_size=20)
EXPECTED = st.builds(
    Expected.of, st.integers(0, limits.EXPECTED_TOKENS), st.integers(0, limits.EXPECTED_TOKENS), CHAINS
)
REQUESTS = st.builds(
    OtherRequest,
    NUMBERS,
    st.text(max_size=20),
    st.integers(0, 10**6).map(lambda ms: ms / 1000),
    st.booleans(),
    EXPECTED,
)
SAID = st.builds(
    lambda began, first, ended: Others(tuple(began), tuple(first), tuple(ended)),
    st.lists(REQUESTS, max_size=5),
    st.lists(NUMBERS, max_size=5),
    st.lists(NUMBERS, max_size=5),
)


@given(SAID)
def test_what_is_said_is_read(said: Others) -> None:
    assert Others.from_payload(said.to_payload()) == said


def test_the_vector_reads_as_it_is_meant() -> None:
    expected = Expected(812, 160, "AQAAAAAAAAD//////////w==")
    assert Others.from_payload(OTHERS) == Others(
        (OtherRequest(7, "d1", 0.013, False, expected), OtherRequest(8, "d2", 31.5, True)), (), (5,)
    )
    assert expected.fingerprints == (1, 2**64 - 1)
    assert RequestHead.from_payload(EXPECTING).expected == expected


def test_members_at_their_defaults_are_left_out_and_later_ones_ignored() -> None:
    assert Others().to_payload() == b"{}"
    assert Others((OtherRequest(1, "d"),)).to_payload() == b'{"began":[{"number":1,"deployment":"d"}]}'
    assert Others.from_payload(b'{"began":[{"number":1,"deployment":"d","later":2}],"later":[]}') == Others(
        (OtherRequest(1, "d"),)
    )


@pytest.mark.parametrize(
    "said",
    [
        {"began": [{"deployment": "d"}]},
        {"began": [{"number": 1}]},
        {"began": [{"number": -1, "deployment": "d"}]},
        {"began": [{"number": 1, "deployment": "d", "age_s": -0.1}]},
        {"began": [{"number": 1, "deployment": "d", "read": 1}]},
        {"began": [{"number": 1, "deployment": "d", "expected": {"input_tokens": -1}}]},
        {"began": [{"number": 1, "deployment": "d", "expected": {"output_tokens": 2**24 + 1}}]},
        {"began": [{"number": 1, "deployment": "d", "expected": {"prefix": "AAAA"}}]},
        {"began": [{"number": 1, "deployment": "d", "expected": {"prefix": "not base64!!"}}]},
        {"began": [{"number": 1, "deployment": "d", "expected": {"prefix": "\u00e9"}}]},
        {"began": [{"number": 1, "deployment": "d", "expected": None}]},
        {"began": {}},
        {"first": [1.5]},
        {"first": [True]},
        {"ended": ["1"]},
        {"ended": [2**53 + 1]},
        {"ended": list(range(limits.OTHERS_NUMBERS + 1))},
        {"began": [{"number": n, "deployment": ""} for n in range(limits.OTHERS_BEGAN + 1)]},
    ],
)
def test_what_is_out_of_bounds_is_malformed(said: Any) -> None:
    with pytest.raises(FrameMalformed):
        Others.from_payload(orjson.dumps(said))


def test_a_longer_prefix_than_allowed_is_malformed_in_open_too() -> None:
    too_long = b64encode(bytes(8 * (limits.EXPECTED_FINGERPRINTS + 1)))
    with pytest.raises(FrameMalformed, match="prefix"):
        RequestHead.from_payload(EXPECTING.replace(b"AQAAAAAAAAD//////////w==", too_long))


@given(CHAINS)
def test_fingerprints_are_read_as_they_were_written(chain: list[int]) -> None:
    assert decode_fingerprints(encode_fingerprints(chain)) == tuple(chain)


def test_of_a_long_chain_the_beginning_is_said() -> None:
    chain = tuple(range(2000))
    assert Expected.of(1, 1, chain).fingerprints == chain[: limits.EXPECTED_FINGERPRINTS]


def test_more_tokens_than_can_be_said_are_said_as_the_most() -> None:
    assert Expected.of(2**60, 2**60, ()) == Expected(limits.EXPECTED_TOKENS, limits.EXPECTED_TOKENS)


def test_what_makes_open_too_long_is_left_out_of_it() -> None:
    head = RequestHead.from_payload(EXPECTING)
    assert head.to_payload() == EXPECTING
    head.headers = tuple((f"x-{n}", "\\" * 254) for n in range(93))
    assert limits.CONTROL_PAYLOAD_BYTES - 1000 < len(head.to_payload()) <= limits.CONTROL_PAYLOAD_BYTES
    assert head.expected is not None
    head.expected = Expected.of(1, 1, range(limits.EXPECTED_FINGERPRINTS))
    payload = head.to_payload()
    assert len(payload) <= limits.CONTROL_PAYLOAD_BYTES
    assert RequestHead.from_payload(payload).expected is None
