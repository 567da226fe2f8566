"""W3C trace context: what is read, what is written, and which requests are recorded."""

import random

import pytest

from shared.process.tracing.context import TraceContext, TraceSampler, read_traceparent

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GIVEN = f"00-{TRACE}-{SPAN}-01"


def test_a_traceparent_is_read_as_it_is_written() -> None:
    context = read_traceparent(GIVEN)
    assert context == TraceContext(int(TRACE, 16), int(SPAN, 16), True)
    assert context.traceparent == GIVEN
    assert TraceContext(1, 2, False).traceparent == f"00-{1:032x}-{2:016x}-00"


def test_later_versions_may_say_more() -> None:
    assert read_traceparent(f"cc-{TRACE}-{SPAN}-03-what-comes") == read_traceparent(GIVEN)


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}{SPAN}-01",
    ],
)
def test_what_is_no_traceparent_is_ignored(text: str | None) -> None:
    assert read_traceparent(text) is None


def test_a_client_that_has_decided_has_decided() -> None:
    assert TraceSampler(0.0).decide(GIVEN) == read_traceparent(GIVEN)
    assert TraceSampler(1.0).decide(GIVEN[:-2] + "00") is None


def test_of_the_others_a_share_is_recorded_by_its_id() -> None:
    assert TraceSampler(0.0).decide(None) is None
    begun = TraceSampler(1.0).decide("nonsense")
    assert begun is not None
    assert (begun.span_id, begun.sampled) == (0, True)
    bits = random.Random(7).getrandbits
    recorded = sum(TraceSampler(0.01, bits).decide(None) is not None for _ in range(100_000))
    assert 850 <= recorded <= 1150
    half = 1 << 63
    assert TraceSampler(0.5, lambda count: (1 << 64) + half - 1).decide(None) is not None
    assert TraceSampler(0.5, lambda count: (1 << 64) + half).decide(None) is None


def test_no_id_is_zero() -> None:
    assert TraceSampler(1.0, lambda count: 0).decide(None) is None
    assert TraceSampler(1.0, lambda count: 0).new_span_id() == 1
