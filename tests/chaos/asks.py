"""The requests of a run: what is asked, how the client behaves, and what the answer must be. Pure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from tests.chaos.town import DEMO, Town
from tests.support.scripted_engine import tokens_of

PATHS: Mapping[str, str] = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
}
_RECORDED = Path(__file__).parents[2] / "agent/engines/torch/demo/answers.json"
_LONG_BYTES = 800_000
"""An answer that does not fit into the sockets between, and of which a gateway keeps a record (1 MiB)."""
_EVENT_BYTES = 48_000
"""An answer with longer events (64 KiB) cannot go on elsewhere."""
_MORE_TOKENS = 50
"""How far above an answer's own end the length allowed lies."""


class Behaviour(StrEnum):
    PLAIN = "plain"
    SLOW = "slow"
    """Reads a little, then nothing for a while."""
    VANISHING = "vanishing"
    """Goes away in the middle."""
    UNREADING = "unreading"
    """Asks for a long answer, reads nothing until its engine is done, or nearly, and then all of it."""


class Special(StrEnum):
    """What makes a streamed answer impossible to continue once it has begun."""

    NONE = ""
    SEVERAL = "n=2"
    LOGPROBS = "logprobs"
    TOOLS = "tools"


@dataclass(frozen=True, slots=True)
class Ask:
    """One request."""

    number: int
    model: str
    route: str
    prompt: str
    tokens: int
    """How many tokens the answer has."""
    stopped: bool
    """The answer comes to its own end; else to the length the request allows."""
    stream: bool
    tokens_per_s: float
    behaviour: Behaviour = Behaviour.PLAIN
    special: Special = Special.NONE
    sdk: bool = False
    usage: bool = False
    """Asks a stream for its usage."""
    patience_s: float = 0.0
    """When a vanishing client goes."""
    pad_bytes: int = 0
    """Each token has at least so many."""
    recorded: str = ""
    """The answer of the demo model."""
    realtime: bool = False
    """It asks for the tier realtime."""

    @property
    def path(self) -> str:
        return PATHS[self.route]

    @property
    def continuable(self) -> bool:
        """Whether it can go on at another engine whatever has been sent of its answer."""
        return not self.stream or self.special is Special.NONE

    @property
    def lasts_s(self) -> float:
        """How long its answer takes undisturbed, as long as its client reads it at once."""
        return self.tokens / self.tokens_per_s

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt.split())

    @property
    def texts(self) -> tuple[str, ...]:
        """What each choice must say."""
        if self.recorded:
            return (self.recorded,)
        prompts = [self.prompt, f"{self.prompt}#1"] if self.special is Special.SEVERAL else [self.prompt]
        return tuple("".join(tokens_of(prompt, self.tokens, self.pad_bytes)) for prompt in prompts)

    def body(self) -> dict[str, Any]:
        """The JSON that is sent."""
        body: dict[str, Any] = {"model": self.model, "temperature": 0, **self._question(), **self._length()}
        if self.model != DEMO:
            body["script"] = self.script()
        if self.realtime:
            body["service_tier"] = "priority"
        if self.stream:
            body["stream"] = True
            if self.usage and self.route in ("chat", "completions"):
                body["stream_options"] = {"include_usage": True}
        return body | self._extras()

    def script(self) -> dict[str, Any]:
        """What the scripted engine is told."""
        script: dict[str, Any] = {"tokens_per_s": self.tokens_per_s}
        if self.pad_bytes:
            script["pad_bytes"] = self.pad_bytes
        if self.stopped:
            script["ends_after"] = self.tokens
        if not self.stream:
            script["delay_s"] = round(self.tokens / self.tokens_per_s, 3)
        return script

    def _question(self) -> dict[str, Any]:
        if self.route == "completions":
            return {"prompt": self.prompt}
        if self.route == "responses":
            return {"input": self.prompt}
        return {"messages": [{"role": "user", "content": self.prompt}]}

    def _length(self) -> dict[str, int]:
        if self.model == DEMO:
            return {}
        key = {"responses": "max_output_tokens", "chat": "max_completion_tokens"}.get(
            self.route, "max_tokens"
        )
        return {key: self.tokens + (_MORE_TOKENS if self.stopped else 0)}

    def _extras(self) -> dict[str, Any]:
        match self.special:
            case Special.SEVERAL:
                return {"n": 2}
            case Special.LOGPROBS:
                return {"logprobs": True}
            case Special.TOOLS:
                schema = {"type": "object", "properties": {"text": {"type": "string"}}}
                return {"tools": [{"type": "function", "function": {"name": "note", "parameters": schema}}]}
            case _:
                return {}


def draw_ask(town: Town, seed: int, number: int) -> Ask:
    """The request ``number`` of the run with this seed: always the same."""
    random = Random(f"{seed}/{number}")
    model = random.choice([model for model in town.models if model != DEMO])
    route = random.choices(tuple(PATHS), (50, 17, 17, 16))[0]
    low, high, slowest, fastest = random.choices(
        ((3, 15, 5, 40), (15, 50, 10, 50), (80, 160, 20, 60)), (70, 26, 4)
    )[0]
    tokens, pace = random.randint(low, high), random.uniform(slowest, fastest)
    behaviour = random.choices(tuple(Behaviour), (89, 4, 5, 2))[0]
    unreading = behaviour is Behaviour.UNREADING
    special = Special.NONE
    if unreading and route in ("responses", "completions"):
        # The last event of one repeats the whole answer, too long for the record; scripted engines do not
        # know the beginning of a padded answer behind the bare prompt of the other.
        route = "chat"
    if route == "chat" and random.random() < 0.06 and not unreading:
        special = random.choice((Special.SEVERAL, Special.LOGPROBS, Special.TOOLS))
    sdk = behaviour is Behaviour.PLAIN and not special and route != "messages" and random.random() < 0.06
    return Ask(
        number=number,
        model=model,
        route=route,
        prompt=f"request {number} of run {seed}: count",
        tokens=tokens,
        stopped=special is Special.TOOLS or random.random() < 0.5,
        stream=bool(special) or behaviour is Behaviour.SLOW or unreading or random.random() < 0.75,
        tokens_per_s=round(pace, 1),
        behaviour=behaviour,
        special=special,
        sdk=sdk,
        usage=random.random() < 0.5,
        patience_s=random.uniform(0.0, tokens / pace),
        pad_bytes=min(_LONG_BYTES // tokens, _EVENT_BYTES) if unreading else 0,
    )


def draw_demo_ask(seed: int, number: int) -> Ask:
    """A question to the demo model, whose greedy answer is on record."""
    random = Random(f"{seed}/demo/{number}")
    messages, answer, tokens = random.choice(_recorded())
    return Ask(
        number=number,
        model=DEMO,
        route="chat",
        prompt=messages,
        tokens=tokens,
        stopped=True,
        stream=random.random() < 0.8,
        tokens_per_s=20.0,
        recorded=answer,
    )


@cache
def _recorded() -> Sequence[tuple[str, str, int]]:
    """Questions of one message, with answer and length."""
    entries = json.loads(_RECORDED.read_text())
    return [
        (entry["messages"][0]["content"], entry["answer"], entry["tokens"])
        for entry in entries
        if len(entry["messages"]) == 1 and 10 <= entry["tokens"] <= 80
    ]
