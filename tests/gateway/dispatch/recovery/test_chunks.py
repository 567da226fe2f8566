"""Chat and completions: cut anywhere, gone on with elsewhere, the answer is the undisturbed one."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.dispatch.recovery import NotContinuable
from tests.gateway.dispatch.recovery import engines, going_on
from tests.gateway.dispatch.recovery.cut_streams import StreamKind
from tests.gateway.dispatch.recovery.engines import Model, Style
from tests.gateway.dispatch.recovery.going_on import Client, cuts

TOKENS = ("Once", " upon", "\n", ' a "time"', " 🚂", "\\n", " é", " data: [DONE]\n\n", " end")
MODEL = Model(TOKENS)
OTHER = Style(id="two", model="m-other", created=9, crlf=True, extra={"system_fingerprint": "fp_two"})
WAYS = {"chat": "final_message", "completions": "prompt"}


def _body(route: str, **more: Any) -> dict[str, Any]:
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
    if route == "completions":
        asked = {"prompt": "PROMPT:", "max_tokens": 100}
    return {"model": "m", "stream": True, **asked, **more}


KINDS = {
    "chat": StreamKind("chat", engines.chat, going_on.seen_in_chat),
    "completions": StreamKind("completions", engines.completions, going_on.seen_in_completions),
}
CHAT = KINDS["chat"]


STYLES = [
    Style(),
    Style(crlf=True, extra={"system_fingerprint": "fp_one", "service_tier": "default"}),
    Style(role_with_text=True, extra={"usage": None}),
    Style(running_usage=True, batch=2),
    Style(usage_in_last=True),
]


@pytest.mark.parametrize("route", ["chat", "completions"])
@pytest.mark.parametrize("usage", [False, True])
@pytest.mark.parametrize("limit", [None, 5])
@pytest.mark.parametrize("style", STYLES)
def test_cut_at_every_byte_the_answer_is_the_undisturbed_one(
    route: str, usage: bool, limit: int | None, style: Style
) -> None:
    more = {"max_tokens": limit} if limit else {}
    body = _body(route, **more, **({"stream_options": {"include_usage": True}} if usage else {}))
    if style.batch > 1 and not usage:
        return  # how many tokens an event has is told with the usage only
    assert KINDS[route].whole(MODEL, body, style).text == "".join(TOKENS[:limit])
    KINDS[route].check_every_cut(MODEL, body, style, WAYS[route], OTHER)


@pytest.mark.parametrize("route", ["chat", "completions"])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_cut_three_times_in_any_pieces_and_any_text_it_is_the_same(route: str, data: st.DataObject) -> None:
    limit = data.draw(st.integers(1, 10))
    body = _body(route, max_tokens=limit, stream_options={"include_usage": data.draw(st.booleans())})
    KINDS[route].check_three_cuts(data, body, [*STYLES[:3], STYLES[4], OTHER], WAYS[route], most_bytes=700)


@pytest.mark.parametrize("route", ["chat", "completions"])
def test_a_client_that_did_not_ask_for_usage_needs_nobody_for_the_last_events(route: str) -> None:
    """The gateway asks for usage on its own account; the agent takes the chunk out again."""
    body = _body(route, stream_options={"include_usage": True})
    stream = KINDS[route].engine(MODEL, body | {"stream_options": None}, Style())
    for _, client in cuts(stream, lambda: Client(route, body, WAYS[route])):
        begun, ended = bool(client.got), b'"finish_reason":"stop"' in client.got
        client.go_on(
            lambda asked: KINDS[route].engine(MODEL, asked | {"stream_options": None}, OTHER), None, False
        )
        assert not begun or KINDS[route].seen(client.got) == KINDS[route].seen(stream)
        assert client.asked == (not ended)


@pytest.mark.parametrize("tells", [False, True])
def test_usage_adds_up_in_total_and_exactly_when_the_engine_says_what_it_continued(tells: bool) -> None:
    body = _body("chat", stream_options={"include_usage": True})
    stream = engines.chat(MODEL, body, Style(batch=3))
    client = Client("chat", body, "final_message")
    client.feed(stream[: stream.index(b"time")])
    client.go_on(lambda asked: engines.chat(MODEL, asked, replace(OTHER, tells_continued=tells)))
    ((prompt, completion, total),) = CHAT.seen(client.got).usage
    written = len(TOKENS) + 1  # the token that ends it counts
    assert total == engines.PROMPT_TOKENS + written == prompt + completion
    assert (completion == written) is tells
    assert b"continued_tokens" not in client.got


def test_an_engine_that_counts_what_it_continues_ends_where_the_whole_answer_may() -> None:
    body = _body("chat", max_tokens=8)
    stream = engines.chat(MODEL, body, Style(batch=3))
    for _, client in cuts(stream, lambda: Client("chat", body, "final_message")):
        begun = bool(client.got)
        client.go_on(lambda asked: engines.chat(MODEL, asked, replace(OTHER, tells_continued=True)))
        assert not begun or CHAT.seen(client.got) == CHAT.seen(stream)


def test_chunks_with_the_answers_own_numbers_keep_what_else_they_say() -> None:
    body = _body("chat")
    client = Client("chat", body, "final_message")
    client.feed(engines.chat(MODEL, body, Style())[:400])
    extra = {"timings": {"ms": 1.25}, "service_tier": "flex", "system_fingerprint": "x"}
    client.go_on(lambda asked: engines.chat(MODEL, asked, replace(OTHER, extra=extra)))
    last = going_on.events(client.got)[-2]
    assert last is not None
    assert last["timings"] == {"ms": 1.25}
    assert "service_tier" not in last
    assert "system_fingerprint" not in last


def test_an_answer_without_text_is_asked_for_as_the_client_did() -> None:
    body = _body("chat", response_format={"type": "json_object"}, logprobs=True)
    stream = engines.chat(MODEL, body, Style())
    client = Client("chat", body, "final_message")
    client.feed(stream[: stream.index(b"Once")])
    assert b"assistant" in client.got
    client.go_on(lambda asked: engines.chat(MODEL, asked, OTHER) if asked == body else b"")
    assert CHAT.seen(client.got) == CHAT.whole(MODEL, body)


def test_a_text_that_a_model_goes_on_to_say_again_is_not_taken_for_repeated() -> None:
    model = Model(("ha", " ha", " ho ") * 6)
    body = _body("chat")
    stream = engines.chat(model, body, Style())
    for way in ("final_message", "prefill"):
        for _, client in cuts(stream, lambda: Client("chat", body, way)):  # noqa: B023
            client.go_on(lambda asked: engines.chat(model, asked, Style()))
            assert CHAT.seen(client.got).text == "".join(model.tokens)


@pytest.mark.parametrize("seed", [None, 1, 5])
def test_a_head_that_the_engine_repeats_goes_once(seed: int | None) -> None:
    body = _body("chat")
    stream = engines.chat(MODEL, body, Style())
    client = Client("chat", body, "prefill", seed)
    client.feed(stream[: stream.index("🚂".encode()) + 60])
    client.go_on(lambda asked: engines.chat(MODEL, asked, replace(OTHER, echoes=True)))
    assert CHAT.seen(client.got) == CHAT.whole(MODEL, body)


def test_tool_calls_after_the_text_pass() -> None:
    body = _body("chat", tools=[{"type": "function", "function": {"name": "f"}}], tool_choice="auto")
    client = Client("chat", body, "final_message")
    client.feed(engines.chat(MODEL, body, Style())[:400])
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    choices = [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}]
    style = Style(id="two")
    client.go_on(lambda asked: style.event({"id": "two", "choices": choices}) + style.done)
    chunk = going_on.events(client.got)[-2]
    assert chunk is not None
    assert chunk["choices"][0]["delta"]["tool_calls"] == [call]
    assert chunk["id"] == "one"


def test_a_completion_whose_length_nobody_knows_is_refused_until_it_is_longer_than_the_usual_default() -> (
    None
):
    model = Model(tuple(f" {number}" for number in range(40)))
    body = _body("completions", max_tokens=None)
    stream = engines.completions(model, body, Style())
    client = Client("completions", body, "prompt")
    client.feed(stream[: stream.index(b'" 10"')])
    with pytest.raises(NotContinuable, match="max_tokens"):
        client.go_on(lambda asked: b"")
    client = Client("completions", body, "prompt")
    client.feed(stream[: stream.index(b'" 20"')])
    client.go_on(lambda asked: engines.completions(model, asked, Style()))
    assert KINDS["completions"].seen(client.got) == KINDS["completions"].whole(model, body)


@pytest.mark.parametrize("route", ["chat", "completions"])
def test_comments_of_a_gateway_that_loads_a_model_are_no_part_of_the_answer(route: str) -> None:
    comment, body, kind = b": loading the model, about 20 s left\n\n", _body(route), KINDS[route]
    stream = comment + kind.engine(MODEL, body, Style())
    whole = kind.seen(stream)
    assert whole.text == "".join(TOKENS)
    for cut in range(0, len(stream), 97):
        client = Client(route, body, WAYS[route])
        client.feed(stream[:cut])
        begun = b"data:" in client.got
        client.go_on(lambda asked: 2 * comment + kind.engine(MODEL, asked, OTHER))
        assert kind.seen_of(client, whole, begun) == whole, cut
