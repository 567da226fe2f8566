"""How many tokens a request will take, before anything has counted them.

Input tokens are bytes times what the model's requests had per byte, as its engines reported. Output
tokens are what the answers of this model and tenant were lately, within what the request allows. Both
are learnt, bounded in memory, and begin with a guess.

An answer that had all the tokens its request allowed was cut there: it says that it would have been at least
so long, and nothing of how long. Taken for a whole answer, it would make answers that may be longer look
shorter than they are. So the share of answers that go on after a length is estimated as Kaplan and Meier do
("Nonparametric estimation from incomplete observations", 1958): from those that were allowed to.
"""

import itertools
from bisect import bisect_left, bisect_right
from collections import deque
from itertools import accumulate, repeat
from operator import mul, neg, rshift, sub

from gateway.scheduling.recent import RecentDict
from shared.process.frozen import frozen

TOKENS_PER_BYTE = 0.25
"""Tokens per byte of English text in JSON, roughly; used until a model's engines have reported counts."""

LEAST_PER_BYTE, MOST_PER_BYTE = 1e-4, 2.0
"""A prompt of images has few tokens for its bytes; no tokenizer makes more than one of a byte, but a
chat template may add to a short prompt."""

RATIO_WEIGHT = 0.02
"""Weight of the latest request in a model's tokens per byte, after the first ones."""

_FIRST_RATIOS = int(1.0 / RATIO_WEIGHT)
"""Of so many all count alike."""

MOST_MODELS = 4096
MOST_TENANTS = 16_384
"""Pairs of model and tenant whose answers are remembered."""

LATEST = 128
"""Answers remembered of each."""

FRESH = 4
"""They are sorted anew once one in so many of them is new."""

MOST_SAID = 16
"""Estimates kept of each tenant and model, while nothing changes them."""

FAMILIAR = 8
"""Answers of a tenant that weigh as much as all that is known of the model."""

HIGH = 0.9
"""The quantile of ``OutputEstimate.high``."""

GUESS = 256

_OTHERS = (0.0, *((left - 1) / left for left in range(1, LATEST + 1)))
"""The share of so many that goes on when one of them ends."""

NO_LIMIT = 1 << 40
"""More tokens than any answer has."""


@frozen
class OutputEstimate:
    """How long an answer will be, in tokens. ``expected`` is the mean of what is known, each answer cut where
    the request would cut it; ``high`` is what nine of ten stay within. An answer whose end has not been seen
    is as long as was guessed, and at least as long as the longest that was seen."""

    expected: int
    high: int


class OutputEstimates:
    """Estimates for all models. Bounded: what was used longest ago is forgotten first."""

    def __init__(self, most_models: int = MOST_MODELS, most_tenants: int = MOST_TENANTS) -> None:
        self._inputs = RecentDict[str, _Ratio](most_models)
        self._answers = _AnswerLengths(most_models, most_tenants)
        self._unlimited = _AnswerLengths(most_models, most_tenants)
        """Lengths of the answers that nothing limited."""

    def input_tokens(self, model: str, size_bytes: int) -> int:
        """Input tokens of a request of ``size_bytes`` bytes."""
        known = self._inputs.get(model)
        return round(size_bytes * (known.value if known is not None else TOKENS_PER_BYTE))

    def output(self, model: str, tenant: str, most: int | None = None, guess: int = GUESS) -> OutputEstimate:
        """The length of an answer that may have ``most`` tokens (None: no limit). ``guess`` is the length to
        assume while nothing is known."""
        models, tenants = self._answers.models, self._answers.tenants
        of_model, of_tenant = models.get(model), tenants.get((model, tenant))
        if of_model is None or of_tenant is None:
            return self._output(of_model, of_tenant, most, guess)
        if of_tenant.said_after != of_model.changed:
            of_tenant.said_after = of_model.changed
            of_tenant.said.clear()
        said = of_tenant.said.get((most, guess))
        if said is None:
            if len(of_tenant.said) >= MOST_SAID:
                of_tenant.said.clear()
            said = of_tenant.said[most, guess] = self._output(of_model, of_tenant, most, guess)
        return said

    def _output(
        self, of_model: "_Lengths | None", of_tenant: "_Lengths | None", most: int | None, guess: int
    ) -> OutputEstimate:
        limit = NO_LIMIT if most is None else max(0, most)
        expected, high = (float(min(guess, limit)),) * 2
        for known in (of_model, of_tenant):
            if known is not None:
                trust = known.trust
                if known.stale or limit < known.longest or (known.unended and known.longest < guess):
                    known_expected, known_high = known.within(limit, guess)
                else:
                    known_expected, known_high = known.mean, known.high
                expected += trust * (known_expected - expected)
                high += trust * (known_high - high)
        return OutputEstimate(round(expected), round(high))

    def unlimited(self, model: str, tenant: str, room: int) -> int:
        """What nine of ten answers stay within that nothing limits; ``room``, which they have, while fewer
        than :data:`FAMILIAR` such are known of the model. Answers that were cut short say nothing of it."""
        of_model = self._unlimited.models.get(model)
        if of_model is None or of_model.count < FAMILIAR:
            return room
        _, high = of_model.within(NO_LIMIT, 0)
        of_tenant = self._unlimited.tenants.get((model, tenant))
        if of_tenant is not None:
            high += of_tenant.trust * (of_tenant.within(NO_LIMIT, 0)[1] - high)
        return min(round(high), room)

    def learn_unlimited(self, model: str, tenant: str, output_tokens: int) -> None:
        """An answer that nothing limited came whole, and had so many tokens."""
        if output_tokens > 0:
            self._unlimited.note(model, tenant, output_tokens, False)

    def learn(
        self,
        model: str,
        tenant: str,
        *,
        size_bytes: int = 0,
        input_tokens: int | None = None,
        output_tokens: int | None = None,
        most_tokens: int | None = None,
    ) -> None:
        """A request was answered whole, and its engine counted so many tokens; None for what it did not
        count. ``most_tokens`` is what the request allowed its answer to have; None: it did not say."""
        if input_tokens and size_bytes > 0:
            inputs = self._inputs
            ratio = inputs.get(model)
            if ratio is None:
                ratio = inputs.renewed(model, _Ratio)
            else:
                inputs.move_to_end(model)
            ratio.note(input_tokens / size_bytes)
        if output_tokens:
            cut = most_tokens is not None and output_tokens >= most_tokens
            self._answers.note(model, tenant, output_tokens, cut)


class _Ratio:
    """A mean of tokens per byte: of all requests first, of the latest fifty or so later."""

    def __init__(self) -> None:
        self.value = TOKENS_PER_BYTE
        self.count = 0

    def note(self, ratio: float) -> None:
        """Learn from the ratio of one more request, limited to plausible values."""
        if not LEAST_PER_BYTE <= ratio <= MOST_PER_BYTE:
            ratio = min(max(ratio, LEAST_PER_BYTE), MOST_PER_BYTE)
        value, weight = self.value, RATIO_WEIGHT
        if self.count < _FIRST_RATIOS:
            self.count += 1
            weight = max(1.0 / (self.count + 1), RATIO_WEIGHT)
        self.value = value + (ratio - value) * weight


_changes = itertools.count(1)


class _Lengths:
    """The latest answers' lengths, sorted when they are needed and one in ``FRESH`` of them is new."""

    def __init__(self) -> None:
        self._latest: deque[int] = deque(maxlen=LATEST)
        """Twice the tokens of each, and one more where it was cut: so they are sorted fastest, and of one
        length those that ended come first, as they must."""
        self._lengths: list[int] = [0]
        """From none at all to the longest."""
        self._going: list[float] = [1.0]
        """The share of answers that go on after each of the lengths."""
        self._means: list[float] = [0.0]
        """The mean of the answers, were none longer than each of the lengths."""
        self.count = 0
        """How many are remembered."""
        self.stale = True
        """They are to be sorted again before what follows is read."""
        self.longest = -1
        self.mean = 0.0
        """Of the answers, were none longer than the longest that was seen."""
        self.high = 0
        self.unended = 0.0
        """The share of answers that go on after the longest that was seen."""
        self._new = 0
        self.trust = 0.0
        """0 to 1: what they weigh against what is known without them."""
        self.changed = 0
        """Another number, that no others have had, after each answer that changes what is read from them."""
        self.said: dict[tuple[int | None, int], OutputEstimate] = {}
        """Of a tenant's answers: what was estimated, by what the request allows and the guess, since either
        these or the model's changed."""
        self.said_after = -1
        """``changed`` of the model's answers then."""

    def note(self, tokens: int, cut: bool) -> None:
        self._latest.append(2 * tokens + cut)
        self._new += 1
        if self.count < LATEST or FRESH * self._new >= LATEST:
            self._change()

    def _change(self) -> None:
        self.changed = next(_changes)
        self.said.clear()
        if self.count < LATEST:
            self.count += 1
            if self.count < LATEST:
                self.trust = self.count / (self.count + FAMILIAR)
        self.stale = FRESH * self._new >= self.count

    def within(self, limit: int, guess: int) -> tuple[float, float]:
        """The mean, and the quantile ``HIGH``, of the lengths, none counted for more than ``limit``. Answers
        that go on after the longest that was seen are as long as ``guess`` then, if that is more."""
        if self.stale:
            self._sort()
        if limit < self.longest:
            at = bisect_right(self._lengths, limit) - 1
            return self._means[at] + self._going[at] * (limit - self._lengths[at]), min(limit, self.high)
        end = max(self.longest, min(limit, guess))
        high = end if self.unended > 1.0 - HIGH else self.high
        return self.mean + self.unended * (end - self.longest), high

    def _sort(self) -> None:
        answers, count = sorted(self._latest), len(self._latest)
        lengths = self._lengths = [0, *map(rshift, answers, repeat(1))]
        left = zip(answers, _OTHERS[count:0:-1], strict=True)
        others = [1.0 if answer & 1 else share for answer, share in left]  # 1 where it was cut
        going = self._going = list(accumulate(others, mul, initial=1.0))
        steps = map(sub, lengths[1:], lengths)
        self._means = list(accumulate(map(mul, going, steps), initial=0.0))
        self.mean, self.longest, self.unended = self._means[-1], lengths[-1], going[-1]
        self.high = lengths[min(bisect_left(going, HIGH - 1.0, key=neg), count)]
        self.stale, self._new = False, 0


class _AnswerLengths:
    """Lengths of answers, by model and by model and tenant."""

    def __init__(self, most_models: int, most_tenants: int) -> None:
        self.models = RecentDict[str, _Lengths](most_models)
        self.tenants = RecentDict[tuple[str, str], _Lengths](most_tenants)

    def note(self, model: str, tenant: str, tokens: int, cut: bool) -> None:
        """One more answer had so many tokens; ``cut``: it was allowed no more."""
        models, tenants, key = self.models, self.tenants, (model, tenant)
        of_model, of_tenant = models.get(model), tenants.get(key)
        if of_model is None or of_tenant is None:
            of_model, of_tenant = models.renewed(model, _Lengths), tenants.renewed(key, _Lengths)
        else:
            models.move_to_end(model)
            tenants.move_to_end(key)
        of_model.note(tokens, cut)
        of_tenant.note(tokens, cut)
