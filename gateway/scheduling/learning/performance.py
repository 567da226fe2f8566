"""How fast each model runs on each class of device: priors, and what outcomes teach.

An answer takes, from when its request was placed::

    first token  = reading of prompts ahead of it + fixed
                   + uncached prompt tokens x (token + pair x tokens before each, on average)
                   + prompt tokens believed to be cached x cached
    the rest     = output tokens x (step + each x running + kv x context tokens in the batch)
                   + reading of other prompts meanwhile

Each coefficient is a prior times a multiplier that is learnt (:mod:`gateway.scheduling.learning.regression`).
The prior is that of a dense model of 8 billion parameters
(:class:`gateway.scheduling.learning.devices.Prior`); how much larger or smaller a model is shows in the first
answers, and is carried over from one device class to the others.
"""

import math
from collections.abc import Iterator
from operator import mul
from typing import NamedTuple

from msgspec import Struct

from gateway.scheduling.base import Outcome
from gateway.scheduling.learning.devices import Prior, device_class
from gateway.scheduling.learning.evidence import Evidence
from gateway.scheduling.learning.regression import LEAST, MOST, Accuracy, ShareRegression
from gateway.scheduling.load import Concurrency
from gateway.scheduling.recent import RecentDict

MOST_PAIRS = 4096
"""Pairs of model and device class remembered; the one used longest ago is forgotten first."""

FIXED_S = 0.02
"""Time that every request takes before anything is computed: HTTP, the tokenizer, the engine's own queue."""

CACHED_SHARE = 0.02
"""The share of a token's reading time that a cached token takes. It is learnt too: times show whether an
engine caches nothing without saying so."""

READING_LEANINGS = (1.0, 1.0, 1.0, CACHED_SHARE)
WRITING_LEANINGS = (1.0, 1.0, 1.0, 1.0)
"""Where the multipliers of the parts of reading a prompt and of writing an answer begin."""

WARM = 3
"""Observations after which a pair no longer borrows from others."""

KNOWN = 30
"""Observations of a class before anything is concluded from what one of its devices does otherwise."""

HIT_WEIGHT = 0.05
"""Weight of the latest prompt in ``Speeds.hit_share``."""

UNREPORTED_WEIGHT = 0.25
"""Weight of an outcome of which token counts were not reported but estimated."""

LEARN_EVERY_S = 0.02
FAMILIAR = 256
"""A pair that has seen so many outcomes learns from one in so many seconds: where hundreds come in a second
the others teach nothing new, and cost as much as a request's whole way through the scheduler."""

LOAD_WEIGHT = 0.3


class PredictedWork(Struct, frozen=True, gc=False):
    """What a request was taken for when it was placed."""

    believed_tokens: int
    """Tokens of its prompt that were believed to be cached."""
    uncached_tokens: int
    """What was expected to be read, after what such beliefs have been worth."""
    input_tokens: int
    output_tokens: int
    first_token_s: float
    """Predicted, from when it was placed."""
    total_s: float
    read_s: float = 0.0
    """The part of ``total_s`` in which its own prompt is read."""
    token_s: float = 0.0
    """What reading a token was taken to take; what was said in seconds then is counted by it, however that
    has been learnt to be wrong since. 0 for what it is taken to take now."""


class Coefficients(NamedTuple):
    """What was known of a pair at one time, in seconds, as :class:`Speeds` names it."""

    fixed_s: float
    token_s: float
    pair_s: float
    cached_s: float
    step_s: float
    each_s: float
    kv_s: float

    def read_s(self, uncached_tokens: float, cached_tokens: float) -> float:
        """:meth:`Speeds.read_s`."""
        each_s = self.token_s + self.pair_s * (cached_tokens + 0.5 * uncached_tokens)
        return uncached_tokens * each_s + cached_tokens * self.cached_s


class Speeds:
    """One model on one device class. The coefficients are plain attributes, in seconds, positive and finite,
    current after every outcome."""

    def __init__(self, model: str, device: str) -> None:
        self.model = model
        self.device = device
        self.prior = Prior.of(device)
        self.reading = ShareRegression(READING_LEANINGS)
        self.writing = ShareRegression(WRITING_LEANINGS)
        self.loads = 0
        self.load_s = self.prior.load_s
        self.accuracy = Accuracy()
        self.learnt_s = float("-inf")
        """When it last learnt something."""
        self.reports_cached = False
        """Whether the engine says how much of a prompt was cached: it did once."""
        self.hit_share = 1.0
        """The share of the tokens believed to be cached that really are, as far as the engine says."""
        self._refresh()

    def read_s(self, uncached_tokens: float, cached_tokens: float = 0.0) -> float:
        """How long it takes to read so many tokens behind so many that are cached."""
        each_s = self.token_s + self.pair_s * (cached_tokens + 0.5 * uncached_tokens)
        return uncached_tokens * each_s + cached_tokens * self.cached_s

    def output_s(self, output_tokens: float, running: float, kv_tokens: float, reading_share: float) -> float:
        """How long ``output_tokens`` take to write when so many run at once, holding so much context, while
        the device reads prompts for a share of its time."""
        steps_s = output_tokens * (self.step_s + self.each_s * running + self.kv_s * kv_tokens)
        return steps_s / (1.0 - reading_share)

    def should_learn(self, now: float) -> bool:
        """Whether one more outcome is worth learning from; if so, that it is learnt now."""
        if self.reading.count >= FAMILIAR and now - self.learnt_s < LEARN_EVERY_S:
            return False
        self.learnt_s = now
        return True

    def learn(
        self,
        predicted: PredictedWork,
        outcome: Outcome,
        concurrency: Concurrency,
        first_s: float | None,
        total_s: float,
    ) -> tuple[float, float]:
        """An answer came whole, its first token after ``first_s`` and its end after ``total_s``. Returns how
        long its prompt and its writing took against what was known, tokens and concurrency given: ``LEAST``
        to ``MOST``; 1 before the class is known. Reading and writing are believed as far as each made up the
        time that is known."""
        output_tokens, weight = outcome.output_tokens, 1.0
        if output_tokens is None:
            output_tokens, weight = predicted.output_tokens, UNREPORTED_WEIGHT
        if outcome.cached_tokens is not None and (outcome.cached_tokens or self.reports_cached):
            self._learn_hits(predicted, outcome.cached_tokens)
        reading, writing = self._parts(predicted, outcome, output_tokens - 1, concurrency)
        of_reading, of_writing = self.reading.multipliers, self.writing.multipliers
        reading_s = math.fsum(map(mul, of_reading, reading))
        writing_s = math.fsum(map(mul, of_writing, writing))
        if first_s is not None and output_tokens > 1 and total_s > first_s:
            self.reading.observe(reading, first_s, weight)
            self.writing.observe(writing, total_s - first_s, weight)
            paces = _ratio(first_s, reading_s), _ratio(total_s - first_s, writing_s)
        else:  # only the total is known: either is taken to be off by the same factor
            expected_s = reading_s + writing_s
            share = reading_s / expected_s
            if share > 0:
                self.reading.observe(reading, total_s * share, weight * share**2)
            if share < 1:
                self.writing.observe(writing, total_s * (1 - share), weight * (1 - share) ** 2)
            pace = _ratio(total_s, expected_s)
            paces = pace, pace
        if of_reading is not self.reading.multipliers or of_writing is not self.writing.multipliers:
            self._refresh()  # with one in a few outcomes, once enough are known
        known = self.reading.count >= KNOWN or self.reading.known >= KNOWN
        return paces if known else (1.0, 1.0)

    def loaded(self, load_s: float) -> None:
        """The model was loaded in ``load_s``."""
        if 0.0 < load_s < math.inf:
            self.load_s += (load_s - self.load_s) * (LOAD_WEIGHT if self.loads else 1.0)
            self.loads += 1

    def borrow(self, reading: float, writing: float) -> None:
        """Begin with another pair's multipliers, as far as nothing was observed of this one."""
        if not self.reading.known:
            self.reading.restart(reading)
        if not self.writing.known:
            self.writing.restart(writing)
        self._refresh()

    def hear(self, reading: Evidence | None, writing: Evidence | None) -> None:
        """What other processes have observed, in place of what they had before."""
        self.reading.hear(reading)
        self.writing.hear(writing)
        self._refresh()

    def _learn_hits(self, predicted: PredictedWork, cached_tokens: int) -> None:
        """The engine says how much of a prompt was cached."""
        self.reports_cached = True
        if predicted.believed_tokens > 0:
            hit = min(1.0, cached_tokens / predicted.believed_tokens)
            self.hit_share += (hit - self.hit_share) * HIT_WEIGHT

    def _parts(
        self, predicted: PredictedWork, outcome: Outcome, written: int, concurrency: Concurrency
    ) -> tuple[list[float], list[float]]:
        """How long each part of reading the prompt, and of writing ``written`` tokens, takes by the prior."""
        prior, token_s = self.prior, predicted.token_s or self.token_s
        uncached_tokens, cached_tokens = _read(predicted, outcome, self.reports_cached)
        before = cached_tokens + 0.5 * uncached_tokens
        reading = [
            FIXED_S,
            prior.token_s * (uncached_tokens + concurrency.ahead_s / token_s),
            prior.pair_s * uncached_tokens * before,
            prior.token_s * cached_tokens,
        ]
        if written <= 0:
            return reading, [0.0, 0.0, 0.0, 0.0]
        writing = [
            written * prior.step_s,
            written * prior.each_s * concurrency.running,
            written * prior.kv_s * concurrency.kv_tokens,
            prior.token_s * concurrency.read_s / token_s,
        ]
        return reading, writing

    def _refresh(self) -> None:
        prior = self.prior
        fixed, token, pair, cached = self.reading.multipliers
        step, each, kv, _ = self.writing.multipliers
        self.fixed_s = FIXED_S * fixed
        self.token_s = prior.token_s * token
        self.pair_s = prior.pair_s * pair
        self.cached_s = prior.token_s * cached
        self.step_s = prior.step_s * step
        self.each_s = prior.each_s * each
        self.kv_s = prior.kv_s * kv
        # one tuple for all decisions until something is learnt
        of_reading = self.fixed_s, self.token_s, self.pair_s, self.cached_s
        known = *of_reading, self.step_s, self.each_s, self.kv_s
        self.coefficients = tuple.__new__(Coefficients, known)  # what its own constructor does


class Performance:
    """The speeds of every model on every device class. Bounded: ``MOST_PAIRS``."""

    def __init__(self, most_pairs: int = MOST_PAIRS) -> None:
        self._pairs = RecentDict[tuple[str, str], Speeds](most_pairs)
        self._most_models = 2 * most_pairs
        self._devices: dict[str, set[str]] = {}
        """The classes that were asked for of each model, of which some may be forgotten among the pairs."""

    def __iter__(self) -> Iterator[Speeds]:
        """All there are, the one used last at the end; its ``accuracy`` is for export."""
        return iter(list(self._pairs.values()))

    def find(self, model: str, device: str) -> Speeds | None:
        """What is known of ``model`` on a class of device, where that was ever asked for."""
        return self._pairs.get((model, device))

    def is_measured(self, model: str) -> bool:
        """Whether anything was observed of ``model``, on any class. Takes as long however many others there
        are."""
        devices = self._devices.get(model, ())
        found = (self._pairs.get((model, device)) for device in devices)
        return any(each is not None and each.reading.known for each in found)

    def speeds(self, model: str, device: str) -> Speeds:
        """What is known of ``model`` on a device of this name or class. The object stays current."""
        key = model, device_class(device)
        found = self._pairs.get(key)
        if found is None:
            found = Speeds(*key)
            self._lend(found)
            self._pairs[key] = found
            self._note_device(*key)
        else:
            self._pairs.move_to_end(key)
        return found

    def learn(
        self,
        speeds: Speeds,
        predicted: PredictedWork,
        outcome: Outcome,
        concurrency: Concurrency,
        way_s: float = 0.0,
    ) -> tuple[float, float]:
        """``speeds`` learns from an outcome, and lends what it knows to its fellows. ``way_s`` of its times
        were the way there and back, which is counted for each deployment by itself, not learnt of its whole
        class. Returns how long prompt and answer took against what was known; 1 for what teaches nothing."""
        if not outcome.ok:
            return 1.0, 1.0
        accuracy, first_s = speeds.accuracy, outcome.first_token_s
        total_s = outcome.total_s - way_s if outcome.total_s > way_s else 0.0
        if first_s is not None:
            first_s = first_s - way_s if first_s > way_s else 0.0
            accuracy.first_token.note(predicted.first_token_s, first_s)
        accuracy.total.note(predicted.total_s, total_s)
        paces = speeds.learn(predicted, outcome, concurrency, first_s, total_s)
        if speeds.reading.count <= WARM and speeds.reading.known <= WARM:
            for other in self._pairs.values():
                if other.model == speeds.model and other is not speeds:
                    self._lend(other)
        return paces

    def _note_device(self, model: str, device: str) -> None:
        self._devices.setdefault(model, set()).add(device)
        if len(self._devices) > self._most_models:  # most of them are forgotten
            self._devices = {}
            for known, its in self._pairs:
                self._devices.setdefault(known, set()).add(its)

    def _lend(self, speeds: Speeds) -> None:
        """A model is as much larger on one device class as on another; a device is as fast for a new model as
        it was for others."""
        if speeds.reading.known and speeds.writing.known:
            return
        known = [each for each in self._pairs.values() if each is not speeds and each.reading.known]
        lenders = [each for each in known if each.model == speeds.model]
        lenders = lenders or [each for each in known if each.device == speeds.device]
        if lenders:
            speeds.borrow(
                _middle([each.reading.common for each in lenders]),
                _middle([each.writing.common for each in lenders]),
            )


def _ratio(took_s: float, expected_s: float) -> float:
    if not (0.0 < expected_s < math.inf and took_s > 0.0):
        return 1.0
    ratio = took_s / expected_s
    return LEAST if ratio < LEAST else MOST if ratio > MOST else ratio


def _middle(values: list[float]) -> float:
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def _read(predicted: PredictedWork, outcome: Outcome, reports_cached: bool) -> tuple[float, float]:
    """Prompt tokens really read, and those that were cached: as the engine says, if it ever does."""
    if outcome.input_tokens is None:
        return predicted.uncached_tokens, predicted.input_tokens - predicted.uncached_tokens
    if reports_cached and outcome.cached_tokens is not None:
        uncached_tokens = outcome.input_tokens - outcome.cached_tokens
        return uncached_tokens if uncached_tokens > 0 else 0, outcome.cached_tokens
    believed = predicted.uncached_tokens / predicted.input_tokens if predicted.input_tokens else 1.0
    return outcome.input_tokens * believed, outcome.input_tokens * (1.0 - believed)
