"""How fast a model is on a class of device, and where that is from.

Of classes on which the gateway has seen the model run it has learnt the speed
(:mod:`gateway.scheduling.learning.performance`). For another class it is scaled as the gateway itself would:
public figures of the class, times how far the model was off them elsewhere. Nothing is made up without saying
so: each speed has its origin.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from gateway.scheduling.learning.devices import CLASSES, TYPICAL, figures_of
from gateway.scheduling.learning.performance import (
    KNOWN,
    READING_LEANINGS,
    WRITING_LEANINGS,
    Performance,
    Speeds,
)
from gateway.scheduling.learning.regression import ShareRegression
from gateway.tools.simulate.devices import BIG_CHUNK_TOKENS, BIG_MEMORY_GB, CHUNK_TOKENS, DevicePace
from gateway.tools.whatif.fleet import LearntSpeeds

UNLIMITED_TOKENS = 1 << 40
"""Room for context where an agent does not say how much there is."""


class SpeedOrigin(StrEnum):
    """Where a speed is from, the most trustworthy first."""

    MEASURED = "measured"
    FEW = "few"
    """Measured, but of few answers."""
    GIVEN = "given"
    SCALED = "scaled"
    OTHER_MODELS = "other_models"
    PUBLIC = "public"


@dataclass(frozen=True, slots=True)
class SpeedsThere:
    """One model on one class."""

    model: str
    device: str
    reading: tuple[float, ...]
    writing: tuple[float, ...]
    """Multipliers, as :class:`LearntSpeeds` has them."""
    origin: SpeedOrigin
    words: str
    """A sentence on that."""

    @property
    def learnt(self) -> Speeds:
        """As a gateway that has learnt this knows it."""
        speeds = Speeds(self.model, self.device)
        set_speeds(speeds, self)
        return speeds

    @property
    def tokens_per_s(self) -> float:
        """What one request alone is written at."""
        speeds = self.learnt
        return 1 / (speeds.step_s + speeds.each_s)

    @property
    def prompt_tokens_per_s(self) -> float:
        """What a prompt is read at."""
        return 1 / self.learnt.token_s

    @property
    def fixed_s(self) -> float:
        """What every request takes before its engine reads it, beside a step of that."""
        speeds = self.learnt
        return max(0.0, speeds.fixed_s - speeds.step_s)

    def pace(self, slots: int, kv_tokens: int | None) -> DevicePace:
        """For a simulated engine with so many slots, and room for so much context."""
        speeds, big = self.learnt, figures_of(self.device).memory_gb >= BIG_MEMORY_GB
        return DevicePace(
            step_s=speeds.step_s,
            weights_s=0.0,
            token_s=speeds.token_s,
            context_s=speeds.kv_s,
            pair_s=speeds.pair_s,
            each_s=max(0.0, speeds.each_s - speeds.token_s),
            kv_tokens=kv_tokens or UNLIMITED_TOKENS,
            chunk_tokens=max(BIG_CHUNK_TOKENS if big else CHUNK_TOKENS, 2 * slots),
            max_running=slots,
            load_s=speeds.load_s,
        )

    def at(self, tokens_per_s: float | None, prompt_tokens_per_s: float | None) -> "SpeedsThere":
        """The same with these, where they are given."""
        reading, writing, given = self.reading, self.writing, []
        if tokens_per_s is not None:
            factor = self.tokens_per_s / tokens_per_s
            writing = tuple(each * factor for each in writing)
            given.append(f"{tokens_per_s:g} tokens/s for one request alone")
        if prompt_tokens_per_s is not None:
            factor = self.prompt_tokens_per_s / prompt_tokens_per_s
            reading = tuple(each * factor for each in reading)
            given.append(f"{prompt_tokens_per_s:g} prompt tokens/s")
        if not given:
            return self
        rest = "" if len(given) == 2 else f" The rest: {self.words}"
        words = f"As you said: {' and '.join(given)}.{rest}"
        return replace(self, reading=reading, writing=writing, origin=SpeedOrigin.GIVEN, words=words)


def set_speeds(speeds: Speeds, known: SpeedsThere) -> None:
    """Have ``speeds``, which has learnt nothing, begin with what is known."""
    speeds.reading = ShareRegression(known.reading)
    speeds.writing = ShareRegression(known.writing)
    speeds.borrow(1.0, 1.0)  # has it compute its coefficients


def performance_of(known: Sequence[SpeedsThere]) -> Performance:
    """What a gateway knows that has learnt all of these."""
    performance = Performance()
    for each in known:
        set_speeds(performance.speeds(each.model, each.device), each)
    return performance


def speeds_there(model: str, device: str, learnt: Sequence[LearntSpeeds]) -> SpeedsThere:
    """What is known of ``model`` on ``device``, a class."""
    known = [each for each in learnt if each.answers]
    own = next((each for each in known if (each.model, each.device) == (model, device)), None)
    name = device or "a device that its agent does not name"
    if own is not None:
        enough = own.answers >= KNOWN
        origin = SpeedOrigin.MEASURED if enough else SpeedOrigin.FEW
        few = "" if enough else "only "
        counted = "1 answer" if own.answers == 1 else f"{own.answers:,} answers"
        words = f"The gateway has learnt it from {few}{counted} of {model} on {name}."
        return SpeedsThere(model, device, own.reading, own.writing, origin, words)
    elsewhere = [each for each in known if each.model == model]
    figures = _figures_in_words(device)
    if elsewhere:
        classes = ", ".join(sorted({each.device or "a device without a name" for each in elsewhere}))
        words = (
            f"Nothing was measured of {model} on {name}. It is scaled: {figures}, times how far {model} was "
            f"off such figures on {classes}."
        )
        return _borrowed(model, device, elsewhere, SpeedOrigin.SCALED, words)
    there = [each for each in known if each.device == device]
    if there:
        models = ", ".join(sorted({each.model for each in there}))
        words = f"Nothing was measured of {model}. It is taken to be as fast on {name} as {models}."
        return _borrowed(model, device, there, SpeedOrigin.OTHER_MODELS, words)
    words = (
        f"Nothing was measured of {model}. It is taken for a model of 8 billion parameters in 16 bits on "
        f"{figures}: say how fast it really is."
    )
    return SpeedsThere(model, device, READING_LEANINGS, WRITING_LEANINGS, SpeedOrigin.PUBLIC, words)


def _borrowed(
    model: str, device: str, lenders: Sequence[LearntSpeeds], origin: SpeedOrigin, words: str
) -> SpeedsThere:
    reading = _middle([each.reading_common for each in lenders])
    writing = _middle([each.writing_common for each in lenders])
    return SpeedsThere(
        model,
        device,
        tuple(reading * leaning for leaning in READING_LEANINGS),
        tuple(writing * leaning for leaning in WRITING_LEANINGS),
        origin,
        words,
    )


def _middle(values: Sequence[float]) -> float:
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def _figures_in_words(device: str) -> str:
    if device in CLASSES:
        found = CLASSES[device]
        rates = f"{found.tflops:g} TFLOPS, {found.bandwidth_gb_s:g} GB/s"
        return f"public figures of {device} ({found.source}: {rates})"
    return f"public figures of {TYPICAL.name}, since none of {device or 'this device'} are known"
