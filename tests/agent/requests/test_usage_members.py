"""Usage objects are found in text and read."""

import pytest

from agent.requests.usage_members import read_usage, usage_from
from shared.protocol.messages import Usage


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"prompt_tokens": 5, "total_tokens": 5}, Usage(5, 0)),
        ({"total_tokens": 9}, Usage(9, 0)),
        (
            {"prompt_tokens": 5, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 4}},
            Usage(5, 1, 4),
        ),
        ({"prompt_tokens": 5, "completion_tokens": 1, "prompt_tokens_details": None}, Usage(5, 1)),
        ({"prompt_tokens": -1, "completion_tokens": "x"}, None),
        ({"prompt_tokens": True}, None),
        ({"seconds": 3}, None),
    ],
)
def test_counts_are_read_from_every_known_shape(value: dict[str, object], expected: Usage | None) -> None:
    assert usage_from(value) == expected


@pytest.mark.parametrize(
    "text", [b"", b'"usage":{', b'"usage":{"prompt_tokens":', b'"usage":{]', b'"usage":null']
)
def test_a_usage_object_that_does_not_parse_is_none(text: bytes) -> None:
    assert read_usage(text) is None


def test_usage_nested_without_end_counts_nothing() -> None:
    assert read_usage(b'{"usage":{"a":' + b"[" * 5000) is None
    assert read_usage(b'{"usage":{"a":' + b"[" * 3000 + b"]" * 3000 + b',"total_tokens":1}}') is None
