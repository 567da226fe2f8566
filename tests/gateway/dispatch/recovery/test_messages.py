"""Anthropic's messages: cut anywhere, gone on with elsewhere, the answer is the undisturbed one."""

from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.dispatch.recovery import NotContinuable, SpliceFailed
from shared.protocol.messages import Usage
from tests.gateway.dispatch.recovery import engines, going_on
from tests.gateway.dispatch.recovery.cut_streams import StreamKind
from tests.gateway.dispatch.recovery.engines import Model, Style
from tests.gateway.dispatch.recovery.going_on import Client, read_progress, seen_in_messages

TOKENS = ("Once", " upon", "\n\n", ' a "time"', " 🚂", " ", "\\n", " é", " end")
MODEL = Model(TOKENS)
OTHER = Style(id="two", model="m-other", crlf=True)
KIND = StreamKind("messages", engines.messages, seen_in_messages)


def _body(**more: Any) -> dict[str, Any]:
    asked = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 100}
    return {"model": "m", "stream": True, **asked, **more}


@pytest.mark.parametrize("limit", [5, 100])
@pytest.mark.parametrize("following", [OTHER, replace(OTHER, usage_in_last=True)])
@pytest.mark.parametrize("way", ["prefill", "final_message"])
@pytest.mark.parametrize("style", [Style(), Style(crlf=True, usage_in_last=True)])
def test_cut_at_every_byte_the_answer_is_the_undisturbed_one(
    style: Style, way: str, following: Style, limit: int
) -> None:
    model = MODEL if way == "prefill" else Model(tuple(token.strip() + "." for token in TOKENS))
    body = _body(max_tokens=limit)
    assert KIND.whole(model, body, style).text == "".join(model.tokens[:limit])
    KIND.check_every_cut(model, body, style, way, following)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_cut_three_times_in_any_pieces_and_any_text_it_is_the_same(data: st.DataObject) -> None:
    body = _body(max_tokens=data.draw(st.integers(1, 10)))
    KIND.check_three_cuts(data, body, [Style(), OTHER], "prefill", most_bytes=900, after=b"event: ping")


def _cut_after(text: str, body: dict[str, Any] | None = None, way: str = "prefill") -> Client:
    body = _body() if body is None else body
    stream = engines.messages(MODEL, body, Style())
    client = Client("messages", body, way)
    client.feed(stream[: stream.index(text.encode()) + 20])
    return client


def test_white_space_at_the_end_is_not_sent_and_must_come_again() -> None:
    client = _cut_after("\\n\\n")

    def other_white_space(asked: dict[str, Any]) -> bytes:
        assert asked["messages"][-1] == {"role": "assistant", "content": "Once upon"}
        assert asked["max_tokens"] == 98
        return engines.messages(Model(("Once", " upon", " a", " time")), asked, OTHER)

    with pytest.raises(SpliceFailed, match="white space"):
        client.go_on(other_white_space)


def test_a_head_that_the_engine_repeats_goes_once() -> None:
    client = _cut_after("🚂")
    client.go_on(lambda asked: engines.messages(MODEL, asked, replace(OTHER, echoes=True)))
    assert seen_in_messages(client.got).text == MODEL.tokens[0] + "".join(TOKENS[1:])


@pytest.mark.parametrize("echoes", [True, False])
def test_a_short_head_goes_once_where_white_space_must_follow(echoes: bool) -> None:
    model = Model(("Once ", "Once ", "more"))
    stream = engines.messages(model, _body(), Style())
    client = Client("messages", _body(), "prefill")
    client.feed(stream[: stream.index(b"Once ") + 20])
    client.go_on(lambda asked: engines.messages(model, asked, replace(OTHER, echoes=echoes)))
    assert seen_in_messages(client.got).text == "Once Once more"


def test_what_the_client_let_the_answer_begin_with_is_written_on() -> None:
    started = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well:"}]
    for content in ("Well:", [{"type": "text", "text": "Well:", "cache_control": {"type": "ephemeral"}}]):
        started[-1] = {"role": "assistant", "content": content}  # type: ignore[dict-item]
        client = _cut_after("🚂", None)
        client.body = orjson.dumps(_body(messages=started))

        def engine(asked: dict[str, Any]) -> bytes:
            assert len(asked["messages"]) == 2
            assert engines.said_in_chat(asked).startswith("Well:Once")
            return engines.messages(Model(("Well:", *TOKENS)), asked, OTHER)

        client.go_on(engine)
        assert seen_in_messages(client.got).text == "".join(TOKENS)


def test_a_tool_call_after_the_text_gets_the_next_block() -> None:
    client = _cut_after("🚂", _body(tools=[{"name": "f", "input_schema": {}}]))
    use = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    style = Style(id="two")
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"id": "two", "content": []}},
        {"type": "content_block_start", "index": 0, "content_block": use},
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "input_json_delta", "partial_json": ""},
        },
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 3}},
        {"type": "message_stop"},
    ]
    client.go_on(lambda asked: b"".join(map(style.event, events)))
    got = [(value or {}) for value in going_on.events(client.got)]
    places = [(value["type"], value["index"]) for value in got if "index" in value]
    assert places[-4:] == [
        ("content_block_stop", 0),
        ("content_block_start", 1),
        ("content_block_delta", 1),
        ("content_block_stop", 1),
    ]
    assert got[-2]["usage"]["output_tokens"] == 3 + 5


def test_more_text_after_the_end_of_the_block_is_not_joined() -> None:
    body = _body()
    stream = engines.messages(MODEL, body, Style())
    client = Client("messages", body, "final_message")
    client.feed(stream[: stream.index(b"event: message_delta")])
    with pytest.raises(SpliceFailed, match="more to say"):
        client.go_on(lambda asked: engines.messages(Model((*TOKENS, " more")), asked, OTHER))


def test_usage_that_the_agent_reports_is_added_up() -> None:
    client = _cut_after("🚂")

    progress = read_progress("messages", client.body, client.record)
    progress.continued_request("final_message")
    assert progress.splicer().add_up(Usage(12, 4, 12)) == Usage(7, 9, 7)


@pytest.mark.parametrize(
    ("body", "event", "why"),
    [
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, None, "thinking"),
        ({"tool_choice": {"type": "any"}}, None, "tool call"),
        ({}, {"type": "error", "error": {"type": "overloaded_error"}}, "something else"),
        ({}, {"type": "content_block_start", "index": 1, "content_block": {"type": "text"}}, "more than one"),
        (
            {},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "citations_delta"}},
            "more than text",
        ),
        ({}, {"type": "new_kind_of_event"}, "something else"),
    ],
)
def test_what_cannot_go_on_soundly_is_refused(
    body: dict[str, Any], event: dict[str, Any] | None, why: str
) -> None:
    client = _cut_after("🚂", _body(**body))
    if event is not None:
        client.feed(Style().event(event)[0:] if not client.record._held else b"\n\n" + Style().event(event))
    with pytest.raises(NotContinuable, match=why):
        client.go_on(lambda asked: b"")


def test_thinking_that_came_first_is_refused() -> None:
    client = Client("messages", _body(), "prefill")
    block = {"type": "thinking", "thinking": ""}
    client.feed(Style().event({"type": "content_block_start", "index": 0, "content_block": block}))
    with pytest.raises(NotContinuable, match="more than text"):
        client.go_on(lambda asked: b"")


@pytest.mark.parametrize(
    "event",
    [
        {"type": "error", "error": {"type": "api_error"}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "x"}},
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "x"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta"}},
        {"type": "something"},
        {"no": "type"},
    ],
)
def test_a_continuation_of_an_unexpected_shape_is_not_joined(event: dict[str, Any]) -> None:
    client = _cut_after("🚂", way="final_message")
    with pytest.raises(SpliceFailed):
        client.go_on(lambda asked: Style().event(event))
