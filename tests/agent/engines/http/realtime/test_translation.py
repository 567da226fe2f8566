"""vLLM's realtime dialect under OpenAI's event names. What a client gets is checked with OpenAI's types."""

import base64
import itertools
import json
from typing import Any

import pytest
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter

from agent.engines.http.realtime.audio import Resampler
from agent.engines.http.realtime.translation import Event, EventRefused, Transcription, Translated, read_event

SERVER_EVENT: TypeAdapter[Any] = TypeAdapter(RealtimeServerEvent)
APPEND = {"type": "input_audio_buffer.append", "audio": "AAAA"}
COMMIT = {"type": "input_audio_buffer.commit"}
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


class Session:
    """A transcription whose ids are numbered."""

    def __init__(self) -> None:
        count = itertools.count(1)
        self.transcription = Transcription("voxtral", lambda kind: f"{kind}_{next(count)}")
        self.created = self.engine(type="session.created", id="sess-9", created=1)

    def engine(self, **event: Any) -> Translated:
        return checked(self.transcription.from_engine(json.dumps(event)))

    def client(self, event: Event) -> Translated:
        return checked(self.transcription.from_client(event))

    def refused(self, event: Event) -> Event:
        with pytest.raises(EventRefused) as caught:
            self.transcription.from_client(event)
        told = self.transcription.refusal(caught.value)
        SERVER_EVENT.validate_python(told)
        return dict(told["error"])


def checked(translated: Translated) -> Translated:
    for event in translated.to_client:
        assert type(SERVER_EVENT.validate_python(event)).__name__ != "UnknownEvent"
    return translated


def kinds(events: list[Event]) -> list[str]:
    return [event["type"] for event in events]


def test_the_engine_is_told_its_model_at_once_and_the_client_what_holds() -> None:
    created = Session().created
    assert created.to_engine == [{"type": "session.update", "model": "voxtral"}]
    (told,) = created.to_client
    assert (told["type"], told["session"]["id"], told["session"]["type"]) == (
        "session.created",
        "sess-9",
        "transcription",
    )
    assert told["session"]["audio"]["input"]["format"] == {"type": "audio/pcm", "rate": 24000}
    assert told["session"]["audio"]["input"]["turn_detection"] is None


def test_an_utterance_from_its_first_audio_to_its_transcript() -> None:
    session = Session()
    first = session.client(APPEND)
    assert first.to_engine == [COMMIT, APPEND], "a commit begins, with vLLM"
    assert session.client(APPEND).to_engine == [APPEND]
    (delta,) = session.engine(type="transcription.delta", delta="Hel").to_client
    committed = session.client(COMMIT)
    assert committed.to_engine == [{"type": "input_audio_buffer.commit", "final": True}]
    assert kinds(committed.to_client) == [
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
    ]
    assert session.transcription.ending
    (completed,) = session.engine(type="transcription.done", text="Hello", usage=USAGE).to_client
    item = committed.to_client[0]["item_id"]
    assert (delta["item_id"], delta["delta"]) == (item, "Hel")
    assert (completed["item_id"], completed["transcript"]) == (item, "Hello")
    assert completed["usage"] == {
        "type": "tokens",
        "input_tokens": 3,
        "output_tokens": 2,
        "total_tokens": 5,
    }
    assert not session.transcription.ending
    assert session.client(APPEND).to_engine == [COMMIT, APPEND]
    assert session.client(COMMIT).to_client[0]["previous_item_id"] == item


def test_an_engine_that_ends_an_utterance_by_itself_has_committed_it() -> None:
    session = Session()
    session.client(APPEND)
    told = session.engine(type="transcription.done", text="a", usage=None).to_client
    assert kinds(told)[0] == "input_audio_buffer.committed"
    assert kinds(told)[-1] == "conversation.item.input_audio_transcription.completed"
    assert told[-1]["usage"]["total_tokens"] == 0
    assert session.engine(type="transcription.done", text="a").to_client == [], "nothing is being said"


def test_an_engine_that_fails_ends_the_item_and_the_session_goes_on() -> None:
    session = Session()
    session.client(APPEND)
    session.client(COMMIT)
    (failed,) = session.engine(type="error", error="out of memory", code="processing_error").to_client
    assert failed["type"] == "conversation.item.input_audio_transcription.failed"
    assert (failed["error"]["message"], failed["error"]["type"]) == ("out of memory", "server_error")
    assert session.transcription.ending, "what the engine has left of it is to be taken first"
    assert session.engine(type="transcription.delta", delta="left").to_client == []
    assert session.engine(type="transcription.done", text="left").to_client == []
    assert not session.transcription.ending
    assert session.client(APPEND).to_engine == [COMMIT, APPEND]
    (told,) = session.engine(type="error", error="no", code="model_not_found").to_client
    assert (told["type"], told["error"]["code"], told["error"]["message"]) == (
        "error",
        "model_not_found",
        "no",
    )


@pytest.mark.parametrize("rate", [16000, 24000])
def test_a_client_may_say_its_rate(rate: int) -> None:
    session = Session()
    wanted = {"type": "audio/pcm", "rate": rate}
    update = {
        "type": "session.update",
        "session": {"type": "transcription", "audio": {"input": {"format": wanted}}},
    }
    (updated,) = session.transcription.from_client(update).to_client
    assert updated["type"] == "session.updated"
    assert updated["session"]["audio"]["input"]["format"] == wanted
    assert session.transcription.rate == rate


@pytest.mark.parametrize(
    ("event", "code", "param"),
    [
        ({"type": "response.create"}, "unknown_event", None),
        (COMMIT, "input_audio_buffer_commit_empty", None),
        ({"type": "session.update"}, "invalid_value", "session"),
        ({"type": "session.update", "session": {"type": "realtime"}}, "invalid_value", "session.type"),
        (
            {"type": "session.update", "session": {"audio": {"input": {"format": {"type": "audio/pcmu"}}}}},
            "invalid_value",
            "session.audio.input.format",
        ),
    ],
)
def test_what_the_engine_cannot_do_is_refused_and_says_which_event(
    event: Event, code: str, param: str | None
) -> None:
    error = Session().refused({**event, "event_id": "mine"})
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", code, param)
    assert error["event_id"] == "mine"


def test_audio_that_the_engine_has_cannot_be_cleared() -> None:
    session = Session()
    assert kinds(session.client({"type": "input_audio_buffer.clear"}).to_client) == [
        "input_audio_buffer.cleared"
    ]
    session.client(APPEND)
    assert session.refused({"type": "input_audio_buffer.clear"})["code"] == "not_supported"


@pytest.mark.parametrize("text", ["", "{", "[]", "1", "null", '"a"', "{}"])
def test_what_is_no_event_of_the_engines_is_dropped(text: str) -> None:
    assert Session().transcription.from_engine(text) == Translated()


def append(audio: object) -> bytes:
    return json.dumps({"type": "input_audio_buffer.append", "audio": audio, "event_id": "mine"}).encode()


def test_audio_is_read_at_the_engines_rate() -> None:
    audio = base64.b64encode(bytes(12)).decode()
    assert base64.b64decode(read_event(append(audio), Resampler())["audio"]) == bytes(8)
    assert read_event(append(audio), None)["audio"] == audio


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b"", "invalid_event"),
        (b"[1]", "invalid_event"),
        (b'{"type": 1}', "invalid_event"),
        (append("no base64"), "invalid_audio"),
        (append(7), "invalid_audio"),
        (append(base64.b64encode(b"abc").decode()), "invalid_audio"),
    ],
)
def test_what_is_no_event_of_a_clients_is_refused(text: bytes, code: str) -> None:
    with pytest.raises(EventRefused) as caught:
        read_event(text, Resampler())
    assert caught.value.code == code
    assert caught.value.event_id == ("mine" if code == "invalid_audio" else None)
