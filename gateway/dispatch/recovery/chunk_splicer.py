"""The chunks of a continuation, made those of the chat or completion that began elsewhere."""

from dataclasses import dataclass
from typing import Any

from gateway.dispatch.recovery.chunk_reading import MORE_THAN_TEXT, ChunksRead
from gateway.dispatch.recovery.errors import SpliceFailed
from gateway.dispatch.recovery.events import COMMENT, DONE, ServerEvent, ServerEventReader, written
from gateway.dispatch.recovery.interface import Splicer
from gateway.dispatch.recovery.seam import Seam
from gateway.dispatch.recovery.tally import ContinuedUsage
from shared.protocol.messages import Usage

_PASSING = ("tool_calls", "function_call")
"""What may follow a text: it is whole in the continuation."""


@dataclass(slots=True)
class SplicePlan:
    """What a splicer must know beyond what was said."""

    seam: Seam | None
    """None: the text is whole and only usage is wanted."""
    tally: ContinuedUsage
    chat: bool
    ending: bytes = b""
    """Goes before everything else."""


class ChunkSplicer(Splicer):
    """Joins a continuation to what was ``said``."""

    def __init__(self, said: ChunksRead, plan: SplicePlan) -> None:
        self._said = said
        self._identity = said.identity
        self._role = said.role
        self._begun = bool(said.transcript.text)
        self._plan = plan
        self._ending = plan.ending
        self._reader = ServerEventReader()
        self._finished = False
        self._silent = True
        """The continuation had no text yet."""

    def feed(self, data: bytes) -> bytes:
        return b"".join(map(self._event, self._reader.feed(data)))

    def finish(self) -> bytes:
        out = b"".join(map(self._event, self._reader.finish()))
        seam = self._plan.seam
        rest = seam.finish() if seam is not None and not self._finished else ""
        return out + self._chunk({"choices": [self._choice_of(rest)]}) if rest else out

    def add_up(self, usage: Usage) -> Usage:
        return self._plan.tally.add_up(usage)

    def _event(self, event: ServerEvent) -> bytes:
        if event.data is None:
            return COMMENT
        ending, self._ending = self._ending, b""
        if event.is_done:
            return ending + DONE
        chunk = event.value()
        if chunk is None or not isinstance(chunk.get("choices"), list) or chunk.get("error"):
            raise SpliceFailed("the engine that went on with the answer sent something else than its chunks")
        if self._plan.seam is None:
            self._look_for_end(chunk["choices"])
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            chunk["usage"] = self._plan.tally.chat(usage)
        return ending + (self._usage_of(chunk) if self._plan.seam is None else self._joined(chunk))

    def _look_for_end(self, choices: list[Any]) -> None:
        """An answer that ends of itself does so by a token without text, which engines count too. When the
        continuation is that token and no more, its count is the one that is missing."""
        for choice in choices:
            self._silent = self._silent and not _text_of(choice)
            if self._silent and self._said.reason == "stop" == _finish_reason(choice):
                self._plan.tally.count_end()

    def _usage_of(self, chunk: dict[str, Any]) -> bytes:
        """Of a continuation that was only asked for its usage: the usage."""
        ended = not chunk["choices"] or _finish_reason(chunk["choices"][0]) is not None
        if not ended or not isinstance(chunk.get("usage"), dict):
            return b""
        return self._chunk(chunk | {"choices": []})

    def _joined(self, chunk: dict[str, Any]) -> bytes:
        choices = chunk["choices"]
        if not choices:
            return self._chunk(chunk) if chunk.get("usage") else b""
        if len(choices) != 1 or not isinstance(choices[0], dict) or choices[0].get("index", 0) != 0:
            raise SpliceFailed("the engine that went on with the answer sent several answers at once")
        choice = self._choice(dict(choices[0]))
        return b"" if choice is None else self._chunk(chunk | {"choices": [choice]})

    def _choice(self, choice: dict[str, Any]) -> dict[str, Any] | None:
        """The choice as it goes to the client; None when there is nothing left to say."""
        given = choice.get("delta") or {}
        delta = choice if not self._plan.chat else dict(given if isinstance(given, dict) else {})
        key = "content" if self._plan.chat else "text"
        text = delta.get(key)
        self._check(delta, text)
        if self._plan.chat:
            choice["delta"] = delta
        if self._role:
            delta.pop("role", None)
        said_role = self._role or "role" not in delta
        self._role = self._role or bool(delta.get("role"))
        assert self._plan.seam is not None
        joined = self._plan.seam.feed(text or "")
        ended = _finish_reason(choice) is not None
        calls = any(delta.get(name) for name in _PASSING)
        if (ended or calls) and not self._finished:
            joined += self._plan.seam.finish()
        self._finished = self._finished or ended
        if text or joined:
            delta[key] = joined
        says_more = any(delta.get(name) for name in MORE_THAN_TEXT)
        return choice if joined or ended or says_more or not said_role else None

    def _check(self, delta: dict[str, Any], text: Any) -> None:
        if text is not None and not isinstance(text, str):
            raise SpliceFailed("the engine that went on with the answer sent no text")
        for name, what in MORE_THAN_TEXT.items():
            if self._begun and delta.get(name) and name not in _PASSING:
                raise SpliceFailed(f"the engine that went on with the answer sent {what}")

    def _choice_of(self, text: str) -> dict[str, Any]:
        content = {"delta": {"content": text}} if self._plan.chat else {"text": text}
        return {"index": 0, **content, "logprobs": None, "finish_reason": None}

    def _chunk(self, chunk: dict[str, Any]) -> bytes:
        """The chunk with the identity of the first one."""
        if self._said.first is None:
            return written(chunk)
        for name in ("system_fingerprint", "service_tier"):
            chunk.pop(name, None)
        return written(self._identity | chunk | self._identity)


def _text_of(choice: Any) -> Any:
    """The text in a choice of either kind, None when there is none."""
    delta = choice.get("delta", choice) if isinstance(choice, dict) else None
    return delta.get("content") or delta.get("text") if isinstance(delta, dict) else None


def _finish_reason(choice: Any) -> Any:
    return choice.get("finish_reason") if isinstance(choice, dict) else None
