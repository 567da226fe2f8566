"""The lines of a run's batches, what their answers must be, and when processes are killed. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import orjson

from tests.chaos.asks import draw_demo_ask
from tests.chaos.town import DEMO
from tests.support.scripted_engine import tokens_of

CHAT = "/v1/chat/completions"
MODEL = "alpha"
_TOKENS = (20, 40)
_TOKENS_PER_S = 120.0
_DEMO_SHARE = 0.01
REFUSED_STATUS = 400


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One line: a chat request, and its answer."""

    custom_id: str
    model: str
    prompt: str
    tokens: int
    """Of its answer; of the demo model's those that are on record."""
    recorded: str = ""
    """The answer of the demo model."""
    is_refused: bool = False
    """Its engine answers with :data:`REFUSED_STATUS`."""

    @property
    def text(self) -> str:
        """What the answer says."""
        return self.recorded or "".join(tokens_of(self.prompt, self.tokens))

    def body(self) -> dict[str, Any]:
        """The JSON that the engine gets."""
        messages = [{"role": "user", "content": self.prompt}]
        body: dict[str, Any] = {"model": self.model, "messages": messages, "temperature": 0}
        if self.model == DEMO:
            return body
        script: dict[str, Any] = {"tokens_per_s": _TOKENS_PER_S, "whole_tokens_per_s": _TOKENS_PER_S}
        if self.is_refused:
            script = {"status": REFUSED_STATUS}
        return body | {"max_tokens": self.tokens, "script": script}

    def request(self) -> bytes:
        """The line, with its end."""
        said = {"custom_id": self.custom_id, "method": "POST", "url": CHAT, "body": self.body()}
        return orjson.dumps(said) + b"\n"


@dataclass(frozen=True, slots=True)
class Kill:
    """A process is killed once so many lines or messages are done, and is back after a while."""

    after: int
    away_s: float
    gateway: int


@dataclass(frozen=True, slots=True)
class JobsPlan:
    """A run with batches; everything in it follows from the seed."""

    seed: int
    lines: int = 10_000
    kills: int = 10
    gateways: int = 1
    demo: bool = True
    """A share of the lines is for the demo model."""
    refused_share: float = 0.01
    """Of the lines that their engine refuses."""

    def batches(self) -> tuple[tuple[BatchLine, ...], ...]:
        """The lines of each batch: one for each model."""
        random = Random(f"{self.seed}/lines")
        demo = max(1, int(self.lines * _DEMO_SHARE)) if self.demo else 0
        scripted = tuple(self._scripted(random, number) for number in range(self.lines - demo))
        if not demo:
            return (scripted,)
        asks = [draw_demo_ask(self.seed, number) for number in range(demo)]
        recorded = (
            BatchLine(f"demo-{number}", DEMO, ask.prompt, ask.tokens, ask.recorded)
            for number, ask in enumerate(asks)
        )
        return (scripted, tuple(recorded))

    def _scripted(self, random: Random, number: int) -> BatchLine:
        prompt = f"line {number} of run {self.seed}: count"
        is_refused = random.random() < self.refused_share
        tokens = 0 if is_refused else random.randint(*_TOKENS)
        return BatchLine(f"line-{number}", MODEL, prompt, tokens, is_refused=is_refused)

    def kill_times(self) -> tuple[Kill, ...]:
        """In their order."""
        return draw_kills(self.seed, self.lines, self.kills, self.gateways)


def draw_kills(seed: int, work: int, kills: int, gateways: int) -> tuple[Kill, ...]:
    """Spread over ``work`` lines or messages: the first before any is done, the last when all are and only
    their files are to be written. One or two are the last of three, without the end or with it."""
    random = Random(f"{seed}/kills")
    steps = max(kills, 3) - 1
    numbers = (1,) if kills == 1 else range(steps + 1 - kills, steps + 1)
    return tuple(
        Kill(work * number // steps, random.uniform(0.0, 1.0), random.randrange(gateways))
        for number in numbers
    )


def digest_of(kills: Sequence[Kill]) -> str:
    """The schedule in words."""
    return ", ".join(f"g{kill.gateway} after {kill.after} for {kill.away_s:.2f} s" for kill in kills)
