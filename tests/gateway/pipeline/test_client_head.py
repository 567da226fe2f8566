"""What is read from a client's header fields, and which of them go to engines."""

import pytest
from msgspec.structs import replace

from gateway.domain.errors import (
    BadRequest,
    Forbidden,
    HeadersTooLarge,
)
from gateway.domain.request import Principal, Request, RequestBody
from gateway.domain.residency import read_where
from gateway.domain.surface import (
    ENGINE,
    REALTIME,
)
from gateway.observability.request_trace import with_traceparent
from gateway.pipeline.classify import classify
from gateway.pipeline.client_body import BodyKind, ClientBody
from gateway.pipeline.client_head import DEADLINE_GRACE_S, HeadFacts, forwarded_headers
from gateway.pipeline.websocket_head import Subprotocols
from shared.process.tracing.context import TraceContext
from shared.protocol import limits
from shared.protocol.messages import Headers
from shared.protocol.structs import check_headers
from tests.gateway.pipeline.test_classify import asked, head, refusal


def test_trace_context_is_taken_when_it_is_one() -> None:
    trace = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    assert asked({}, headers=[(b"traceparent", trace)]).trace == trace.decode()
    assert asked({}, headers=[(b"traceparent", b"hello\xff")]).trace is None


@pytest.mark.parametrize("more", [b"\xff", b"-01", b"z" * 5000, b"a" * 5000])
def test_what_begins_as_a_trace_context_and_goes_on_is_none(more: bytes) -> None:
    """Agents end their session where they are told of a longer one."""
    beginning = b"00-" + b"a" * 30 + b"-" + b"b" * 15 + b"-" + b"c" * 14
    assert len(beginning) == 64
    request = asked({}, headers=[(b"traceparent", beginning + more)])
    assert request.trace is None
    assert ("traceparent", (beginning + more).decode("latin-1")) in request.headers


def test_engines_do_not_see_credentials_connections_or_where_the_client_is() -> None:
    hidden = [
        (b"authorization", b"Bearer k"),
        (b"x-api-key", b"k"),
        (b"cookie", b"a=b"),
        (b"host", b"gateway"),
        (b"connection", b"keep-alive, X-Hop"),
        (b"Connection", b"x-other"),
        (b"x-hop", b"1"),
        (b"x-other", b"1"),
        (b"transfer-encoding", b"chunked"),
        (b"te", b"trailers"),
        (b"x-forwarded-for", b"10.0.0.1"),
        (b"forwarded", b"for=10.0.0.1"),
        (b"x-stainless-lang", b"python"),
        (b"x-trunkline-tier", b"batch"),
        (b"x-request-id", b"1"),
        (b"accept-encoding", b"gzip"),
        (b"content-length", b"99"),
    ]
    seen = [(b"content-type", b"application/json"), (b"X-Custom", b"caf\xe9"), (b"user-agent", b"test")]
    kept = forwarded_headers(head(headers=hidden + seen), 5)
    assert kept == (
        ("content-type", "application/json"),
        ("x-custom", "café"),
        ("user-agent", "test"),
        ("content-length", "5"),
    )


def test_what_is_forwarded_is_found_out_once_for_a_head() -> None:
    facts = HeadFacts("/")
    first, second = (
        replace(head(headers=[(b"x-a", value), (b"content-length", b"9")]), facts=facts)
        for value in (b"1", b"2")
    )
    assert forwarded_headers(first, 5) == (("x-a", "1"), ("content-length", "5"))
    assert facts.forwarded == (("x-a", "1"),)
    assert forwarded_headers(second, 7) == (("x-a", "1"), ("content-length", "7"))
    assert forwarded_headers(second, None) == (("x-a", "1"),)


def test_long_fields_are_looked_at_each_time() -> None:
    facts = HeadFacts("/")
    long = replace(head(headers=[(b"x-a", b"1" * 60_000)]), facts=facts)
    for _ in range(2):
        with pytest.raises(HeadersTooLarge):
            forwarded_headers(long, 5)
    assert facts.forwarded is None


def test_a_length_is_told_only_when_there_is_a_body() -> None:
    assert forwarded_headers(head(ENGINE, method="GET"), 0) == ()
    assert forwarded_headers(head(ENGINE), 0) == (("content-length", "0"),)
    assert forwarded_headers(head(ENGINE), None) == ()


@pytest.mark.parametrize("field", [(b"x\xe9", b"1"), (b"a b", b"1"), (b"x", b"a\x00b"), (b"x", b"a\nb")])
def test_a_header_that_would_break_the_tunnel_is_refused(field: tuple[bytes, bytes]) -> None:
    with pytest.raises(BadRequest):
        forwarded_headers(head(headers=[field]), 0)


@pytest.mark.parametrize("fields", [[(b"x", b"a" * 40_000)], [(b"x%d" % i, b"1") for i in range(200)]])
def test_more_headers_than_a_tunnel_carries_are_refused(fields: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(HeadersTooLarge):
        forwarded_headers(head(headers=fields), 0)


@pytest.mark.parametrize("size_bytes", [5, None])
@pytest.mark.parametrize(
    "fields",
    [
        [(b"x-%d" % i, b"1") for i in range(150)],
        [(b"x-long", b"a" * 32_000), *((b"x-%d" % i, b"aaa") for i in range(120))],
    ],
)
def test_what_is_let_through_has_room_for_a_trace_that_is_added(
    fields: list[tuple[bytes, bytes]], size_bytes: int | None
) -> None:
    """Agents end their session over more fields, or longer ones, than a tunnel carries."""
    most: Headers = ()
    for count in range(len(fields) + 1):
        try:
            most = forwarded_headers(head(headers=fields[:count]), size_bytes)
        except HeadersTooLarge:
            break
    traced = with_traceparent(most, TraceContext(1, 1).traceparent)
    assert len(traced) > 30
    assert len(traced) <= limits.HEADERS
    check_headers(traced)


@pytest.mark.parametrize("facts", [None, HeadFacts("/")])
def test_subprotocols_of_a_websocket_count_as_well(facts: HeadFacts | None) -> None:
    for more_bytes, refused in ((1_000, False), (20_000, True)):
        offered = Subprotocols(("a" * more_bytes,))
        asked_for = head(REALTIME, headers=[(b"x-long", b"a" * 15_000)])
        asked_for = replace(asked_for, upgrade=offered, facts=facts)
        if refused:
            with pytest.raises(HeadersTooLarge):
                forwarded_headers(asked_for, None)
        else:
            assert forwarded_headers(asked_for, None)[-1] == ("sec-websocket-protocol", *offered.offered)


@pytest.mark.parametrize("piece", [b'"', b"\xff"])
def test_headers_that_grow_too_long_when_quoted_are_too_large(piece: bytes) -> None:
    with pytest.raises(HeadersTooLarge):
        forwarded_headers(head(headers=[(b"x-long", piece * 30_000)]), 5)


def where_of_request(policy: str | None, *wishes: bytes) -> Request:
    principal = Principal("k", "key", "tenant", None if policy is None else read_where(policy))
    client = head(headers=[(b"x-trunkline-where", wish) for wish in wishes])
    return classify(client, ClientBody(BodyKind.JSON, RequestBody(b'{"model":"m"}', None, 13)), principal)


@pytest.mark.parametrize(
    ("policy", "wishes", "where"),
    [
        (None, [], None),
        ("region=eu", [], "region=eu"),
        (None, [b"region=eu"], "region=eu"),
        (None, [b"region=eu", b"region=uk"], "region=eu,region=uk"),
        ("region=eu,region=uk", [b"region=uk,region=us"], "region=uk"),
        ("region=eu", [b"zone=a"], "region=eu,zone=a"),
    ],
)
def test_a_request_runs_where_its_key_allows_it_or_in_fewer_places(
    policy: str | None, wishes: list[bytes], where: str | None
) -> None:
    request = where_of_request(policy, *wishes)
    assert request.where == (None if where is None else read_where(where))
    assert not any(name.startswith("x-trunkline") for name, _ in request.headers)


def test_a_request_cannot_go_where_its_key_may_not() -> None:
    with pytest.raises(Forbidden, match=r"only on agents with region=eu") as caught:
        where_of_request("region=eu", b"region=us")
    assert (caught.value.status, caught.value.code) == (403, "residency_forbidden")


@pytest.mark.parametrize("wish", [b"", b"eu", b"region=\xff", b"region=eu,,"])
def test_a_constraint_that_cannot_be_read_is_refused_rather_than_ignored(wish: bytes) -> None:
    with pytest.raises(BadRequest, match="x-trunkline-where cannot be read") as caught:
        where_of_request(None, wish)
    assert caught.value.code == "invalid_where"


def test_the_deadline_is_a_little_after_the_sdk_stops_waiting() -> None:
    headers = [(b"x-stainless-read-timeout", b"20")]
    assert asked({}, headers=headers).deadline_s == 120.0 + DEADLINE_GRACE_S


@pytest.mark.parametrize("value", [b"", b"NOT_GIVEN", b"nan", b"inf", b"-1", b"0", b"1e9"])
def test_a_read_timeout_that_is_none_is_ignored(value: bytes) -> None:
    assert asked({}, headers=[(b"x-stainless-read-timeout", value)]).deadline_s is None


@pytest.mark.parametrize("value", [b"", b" ", b"s" * 257, b"a\x07b"])
def test_what_can_be_no_session_is_refused(value: bytes) -> None:
    refused = refusal({}, headers=[(b"x-trunkline-session", value)])
    assert (refused.status, refused.code) == (400, "invalid_session")
