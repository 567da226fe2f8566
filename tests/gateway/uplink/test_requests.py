"""A request of the parent is known as one of a client would be."""

import pytest

from gateway.domain.errors import BadRequest, RequestDeclined
from gateway.domain.request import Request, RequestBody, Tier
from gateway.domain.residency import read_where
from gateway.uplink.requests import ACCOUNT, check_path, endpoint_of, place_of, request_of
from shared.protocol.messages import RequestHead, UsageMode

BODY = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}],"max_tokens":7}'
ID = "0" * 16


def head(**more: object) -> RequestHead:
    found = RequestHead(
        "d", "POST", "/v1/chat/completions", (("content-type", "application/json"),), "m", "r1", True
    )
    for name, value in more.items():
        setattr(found, name, value)
    return found


def made(body: bytes = BODY, **more: object) -> Request:
    return request_of(head(**more), RequestBody(body, None, len(body)), None, "v1", 100.0)


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/v1/chat/completions", "chat"),
        ("/v1/chat/completions?x=1", "chat"),
        ("/v1/embeddings", "embeddings"),
        ("/v1/audio/speech", "audio"),
        ("/slots", "any"),
    ],
)
def test_an_engines_path_says_what_the_request_is(path: str, route: str) -> None:
    assert endpoint_of(path).route == route


def test_what_open_says_counts_and_the_body_is_estimated() -> None:
    request = made(tier="batch", deadline_s=5.0, trace="00-a-b-01", via=(ID,))
    assert (request.id, request.model, request.route, request.version) == ("r1", "m", "chat", "v1")
    assert (request.tier, request.deadline_s, request.via, request.streaming) == (
        Tier.BATCH,
        105.0,
        (ID,),
        True,
    )
    assert (request.principal.tenant, request.most_tokens, request.streaming) == (ACCOUNT, 7, True)


def test_the_engine_is_asked_for_usage_as_the_parent_says() -> None:
    asked = BODY.replace(b'"stream":true', b'"stream":true,"stream_options":{"include_usage":true}')
    assert made(asked, usage=UsageMode.STRIP).usage is UsageMode.STRIP
    assert made(asked, usage=UsageMode.KEEP).usage is UsageMode.KEEP
    unasked = made(headers=(("content-length", str(len(BODY))),))
    assert unasked.usage is UsageMode.STRIP
    assert unasked.headers == (("content-length", str(unasked.body.held_bytes)),)


def test_a_body_that_is_still_coming_is_not_read() -> None:
    async def rest() -> None: ...

    body = RequestBody(b'{"half', rest(), 1000)  # type: ignore[arg-type]
    request = request_of(head(), body, None, "", 0.0)
    assert (request.route, request.input_tokens > 0, request.body.rest is not None) == ("chat", True, True)
    body.rest.close()  # type: ignore[union-attr]


def test_a_body_that_no_engine_can_take_is_told() -> None:
    with pytest.raises(BadRequest):
        made(b"{")


@pytest.mark.parametrize("tier", ["", "urgent"])
def test_a_tier_that_this_version_does_not_know_is_the_usual_one(tier: str) -> None:
    assert made(tier=tier).tier is Tier.STANDARD


def test_a_request_that_was_here_before_or_came_too_far_is_refused() -> None:
    check_path(head(via=("1" * 16, "2" * 16, "3" * 16, "4" * 16)), frozenset((ID,)))
    with pytest.raises(RequestDeclined, match="loop"):
        check_path(head(via=("1" * 16, ID)), frozenset((ID,)))
    with pytest.raises(RequestDeclined, match="more than 4"):
        check_path(head(via=tuple(str(n) * 16 for n in range(1, 6))), frozenset((ID,)))


def test_where_it_may_run_is_read_or_refused() -> None:
    assert place_of(head()) is None
    assert place_of(head(where={"region": ("eu", "uk")})) == read_where("region=eu,region=uk")
    with pytest.raises(RequestDeclined):
        place_of(head(where={"a b": ("c",)}))
