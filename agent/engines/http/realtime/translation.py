"""vLLM's realtime dialect under OpenAI's event names. Pure.

vLLM transcribes: it wants to be told its model first, then a ``commit`` that begins an utterance, its audio,
and a ``commit`` with ``final`` that ends it. It answers ``transcription.delta`` and ``transcription.done``,
and drops audio of the next utterance that comes before the latter
(vllm/entrypoints/speech_to_text/realtime/connection.py). A client of OpenAI's realtime transcription sends
audio and commits what it has sent.
"""

import base64
import binascii
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from agent.engines.http.realtime.audio import CLIENT_RATE, ENGINE_RATE, Resampler

Event = dict[str, Any]

_BEGIN: Event = {"type": "input_audio_buffer.commit"}
_END: Event = {"type": "input_audio_buffer.commit", "final": True}
_PCM = "audio/pcm"
_RATES = (CLIENT_RATE, ENGINE_RATE)


class EventRefused(Exception):
    """A client's event that cannot be carried out. It stays connected, as with OpenAI."""

    def __init__(
        self, code: str, message: str, param: str | None = None, event_id: str | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.param = param
        self.event_id = event_id


@dataclass(frozen=True, slots=True)
class Translated:
    """What an event comes to."""

    to_engine: list[Event] = field(default_factory=list)
    to_client: list[Event] = field(default_factory=list)


def read_event(text: bytes, resampler: Resampler | None) -> Event:
    """A client's event; the audio in it is what the engine gets. Raises :class:`EventRefused`.

    Takes time for every byte, and uses nothing but ``resampler``, None for audio at the engine's rate.
    """
    try:
        event = orjson.loads(text)
    except orjson.JSONDecodeError:
        event = None
    if not isinstance(event, dict) or not isinstance(event.get("type"), str):
        raise EventRefused("invalid_event", "An event is a JSON object with a type.")
    if event["type"] == "input_audio_buffer.append":
        audio, name = event.get("audio"), event.get("event_id")
        try:
            pcm = base64.b64decode(audio if isinstance(audio, str) else "!", validate=True)
        except (binascii.Error, ValueError):
            raise EventRefused("invalid_audio", "The audio is no base64.", "audio", _text(name)) from None
        if len(pcm) % 2:
            raise EventRefused(
                "invalid_audio", "The audio has half a sample: PCM16 is wanted.", "audio", _text(name)
            )
        event["audio"] = base64.b64encode(pcm if resampler is None else resampler.convert(pcm)).decode()
    return event


class Transcription:
    """One client's session. ``new_id`` makes an id that begins with what it is given."""

    def __init__(self, model: str, new_id: Callable[[str], str]) -> None:
        self._model = model
        self._new_id = new_id
        self.rate = CLIENT_RATE
        """Samples a second of the client's audio."""
        self._session: Event = {}
        self._item: str | None = None
        """The item whose audio is being sent; None between two."""
        self._before: str | None = None
        """The item before it."""
        self.ending = False
        """The item was committed, and the engine has not said all of it: audio has to wait, as the engine
        would drop it."""
        self.failed = False
        """The item has failed. What the engine still has of it is being ended, of which nobody is told."""

    def from_engine(self, text: str) -> Translated:
        """What the engine says. What is no event of its dialect goes to the client as it is."""
        try:
            event = orjson.loads(text)
            kind = event["type"]
        except (orjson.JSONDecodeError, TypeError, KeyError):
            return Translated()
        match kind:
            case "session.created":
                return self._created(event)
            case "transcription.delta":
                return self._delta(event)
            case "transcription.done":
                return self._done(event)
            case "error":
                return self._error(event)
        return Translated(to_client=[event])

    def from_client(self, event: Event) -> Translated:
        """What the client says, as :func:`read_event` gives it. Raises :class:`EventRefused`."""
        try:
            match event["type"]:
                case "session.update":
                    return self._update(event.get("session"))
                case "input_audio_buffer.append":
                    return self._append(event["audio"])
                case "input_audio_buffer.commit":
                    return self._commit()
                case "input_audio_buffer.clear":
                    return self._clear()
            raise EventRefused(
                "unknown_event", f"The engine transcribes; it knows no events of type {event['type'][:100]}."
            )
        except EventRefused as refusal:
            refusal.event_id = _text(event.get("event_id"))
            raise

    def refusal(self, refused: EventRefused) -> Event:
        """The event that tells the client."""
        error = {
            "type": "invalid_request_error",
            "code": refused.code,
            "message": str(refused),
            "param": refused.param,
            "event_id": refused.event_id,
        }
        return self._event("error", error=error)

    def give_up_item(self) -> None:
        """The engine says nothing more of an item that has failed."""
        assert self.failed
        self._end_item()

    # --- the engine's events

    def _created(self, event: Event) -> Translated:
        self._session = {
            "type": "transcription",
            "object": "realtime.transcription_session",
            "id": _text(event.get("id")) or self._new_id("sess"),
            "audio": {"input": self._input()},
        }
        created = self._event("session.created", session=self._session)
        return Translated([{"type": "session.update", "model": self._model}], [created])

    def _delta(self, event: Event) -> Translated:
        if self._item is None or self.failed or not event.get("delta"):
            return Translated()
        delta = self._event(
            "conversation.item.input_audio_transcription.delta",
            item_id=self._item,
            content_index=0,
            delta=event["delta"],
        )
        return Translated(to_client=[delta])

    def _done(self, event: Event) -> Translated:
        """All of an utterance. An engine may end it by itself, which then counts as committed."""
        if self._item is None or self.failed:
            self._end_item()
            return Translated()
        told = [] if self.ending else self._committed(self._item)
        completed = self._event(
            "conversation.item.input_audio_transcription.completed",
            item_id=self._item,
            content_index=0,
            transcript=event.get("text") or "",
            usage=_usage(event.get("usage")),
        )
        self._end_item()
        return Translated(to_client=[*told, completed])

    def _error(self, event: Event) -> Translated:
        said, code = event.get("error"), event.get("code")
        error = {
            "type": "server_error" if code == "processing_error" else "invalid_request_error",
            "code": _text(code),
            "message": said if isinstance(said, str) else "The engine failed.",
            "param": None,
        }
        told = [self._event("error", error={**error, "event_id": None})]
        if code != "processing_error" or self._item is None:
            return Translated(to_client=told)
        if self.failed:
            self._end_item()
            return Translated()
        name = "conversation.item.input_audio_transcription.failed"
        self.failed = self.ending = True
        # vLLM keeps audio that it has not read, and a commit: an utterance that begins and ends takes them.
        return Translated(
            [_BEGIN, _END], [self._event(name, item_id=self._item, content_index=0, error=error)]
        )

    # --- the client's events

    def _update(self, session: Any) -> Translated:
        if not isinstance(session, dict):
            raise EventRefused("invalid_value", "session must be an object.", "session")
        if session.get("type", "transcription") != "transcription":
            raise EventRefused(
                "invalid_value", "The engine transcribes: session.type is transcription.", "session.type"
            )
        wanted = _member(_member(_member(session, "audio"), "input"), "format")
        rate = wanted.get("rate", self.rate)
        if wanted.get("type", _PCM) != _PCM or rate not in _RATES:
            raise EventRefused(
                "invalid_value",
                f"The format must be {_PCM} with a rate of {CLIENT_RATE} or {ENGINE_RATE}.",
                "session.audio.input.format",
            )
        self.rate = rate
        self._session["audio"] = {"input": self._input()}
        return Translated(to_client=[self._event("session.updated", session=self._session)])

    def _append(self, audio: str) -> Translated:
        assert not self.ending, "audio has to wait"
        to_engine: list[Event] = []
        if self._item is None:
            self._item = self._new_id("item")
            to_engine.append(_BEGIN)
        if audio:
            to_engine.append({"type": "input_audio_buffer.append", "audio": audio})
        return Translated(to_engine)

    def _commit(self) -> Translated:
        if self._item is None or self.ending:
            raise EventRefused("input_audio_buffer_commit_empty", "There is no audio to commit.")
        self.ending = True
        return Translated([_END], self._committed(self._item))

    def _clear(self) -> Translated:
        if self._item is not None and not self.ending:
            raise EventRefused("not_supported", "The engine has the audio already: it cannot be cleared.")
        return Translated(to_client=[self._event("input_audio_buffer.cleared")])

    # --- steps

    def _committed(self, item: str) -> list[Event]:
        content = [{"type": "input_audio", "transcript": None}]
        message = {
            "id": item,
            "object": "realtime.item",
            "type": "message",
            "status": "completed",
            "role": "user",
            "content": content,
        }
        before = self._before
        return [
            self._event("input_audio_buffer.committed", item_id=item, previous_item_id=before),
            self._event("conversation.item.added", item=message, previous_item_id=before),
            self._event("conversation.item.done", item=message, previous_item_id=before),
        ]

    def _end_item(self) -> None:
        if self._item is not None:
            self._before = self._item
        self._item, self.ending, self.failed = None, False, False

    def _input(self) -> Event:
        return {
            "format": {"type": _PCM, "rate": self.rate},
            "transcription": {"model": self._model},
            "turn_detection": None,
            "noise_reduction": None,
        }

    def _event(self, kind: str, **members: Any) -> Event:
        return {"type": kind, "event_id": self._new_id("event"), **members}


def _member(value: Any, name: str) -> Mapping[str, Any]:
    found = value.get(name) if isinstance(value, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _usage(usage: Any) -> Event:
    """In OpenAI's members; nothing counted is zero."""
    counts = {
        ours: usage.get(theirs) if isinstance(usage, dict) else None
        for ours, theirs in (
            ("input_tokens", "prompt_tokens"),
            ("output_tokens", "completion_tokens"),
            ("total_tokens", "total_tokens"),
        )
    }
    return {
        "type": "tokens",
        **{name: count if isinstance(count, int) else 0 for name, count in counts.items()},
    }
