"""Decisions that need not be made anew: on models that nobody asks for, while nothing of them changes.

A gateway may offer a thousand models of which most are not in use, and decides on each of them every few
seconds.
"""

import math
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

from gateway.scaling.foresight import Foresight, LearntForecast
from gateway.scaling.observation import SeenModel
from gateway.scaling.verdict import ModelVerdict
from gateway.scheduling.scaling.data import ClassFacts, ScalingRule

RENEWED_S = 60.0
"""A decision is made anew after so long: what is learnt of other models may change it, and round trips."""

Standing = tuple[object, ...]
"""What is seen of a model, without what only time changes."""


@dataclass(slots=True)
class KeptDecision:
    """On one model that was idle, and of which as much was wanted as was needed."""

    verdict: ModelVerdict
    facts: Sequence[ClassFacts]
    rule: ScalingRule
    standing: Standing
    learnt: Sequence[LearntForecast | None]
    """What was known of each class ahead."""
    made_s: float
    good_at_s: float
    """It was the decision at this time, too."""

    def is_good(self, seen: SeenModel, foresight: Foresight | None, now: float) -> bool:
        """Whether it would be made again as it is. Then the model's load is noted as it would have been."""
        if now - self.made_s >= RENEWED_S or not _stays_idle(seen, self.rule):
            return False
        if _standing(seen) != self.standing:
            return False
        model = self.verdict.model
        if foresight is not None:
            learnt = [foresight.learnt.get((model, each.device)) for each in self.facts]
            if foresight.events or any(a is not b for a, b in zip(learnt, self.learnt, strict=True)):
                return False
            for each in self.facts:
                foresight.note(model, each, self.rule, 0.0, seen.piece_per_s)
        self.good_at_s = now
        return True


class KeptDecisions:
    """The latest of all models that were idle."""

    def __init__(self) -> None:
        self._kept: dict[str, KeptDecision] = {}

    def good(
        self, model: str, seen: SeenModel, foresight: Foresight | None, now: float
    ) -> ModelVerdict | None:
        """The decision on a model that is still good; None: one has to be made."""
        kept = self._kept.get(model)
        return kept.verdict if kept is not None and kept.is_good(seen, foresight, now) else None

    def end(self, model: str, needed: Callable[[str, ClassFacts, ScalingRule, int, float], object]) -> None:
        """One has to be made. ``needed`` is told until when the kept one was good, and what it needed."""
        kept = self._kept.pop(model, None)
        if kept is not None and kept.good_at_s > kept.made_s:
            for each in kept.facts:
                needed(model, each, kept.rule, kept.verdict.classes[each.device].needed, kept.good_at_s)

    def keep(
        self,
        verdict: ModelVerdict,
        seen: SeenModel,
        facts: Sequence[ClassFacts],
        rule: ScalingRule,
        foresight: Foresight | None,
        now: float,
    ) -> None:
        """It was made now. It is kept if time alone changes nothing."""
        if not _stays_idle(seen, rule):
            return
        if any(each.wanted != each.needed for each in verdict.classes.values()):
            return
        learnt: list[LearntForecast | None] = []
        if foresight is not None:
            learnt = [foresight.learnt.get((verdict.model, each.device)) for each in facts]
            if foresight.events or any(each is not None and each.forecast is not None for each in learnt):
                return
        self._kept[verdict.model] = KeptDecision(verdict, facts, rule, _standing(seen), learnt, now, now)

    def forget_others(self, models: Container[str]) -> None:
        """Only ``models`` are there."""
        for model in [each for each in self._kept if each not in models]:
            del self._kept[model]


def _stays_idle(seen: SeenModel, rule: ScalingRule) -> bool:
    """Nothing is asked for, and for how long nothing was makes no difference."""
    asked = seen.per_s or seen.rising_per_s2 or seen.piece_per_s or seen.waiting or seen.batch_waiting
    return not asked and not seen.in_flight and (rule.min_replicas > 0 or seen.idle_s == math.inf)


def _standing(seen: SeenModel) -> Standing:
    return (
        seen.input_tokens,
        seen.output_tokens,
        seen.high_input_tokens,
        seen.high_output_tokens,
        seen.known,
        seen.hold_s,
        seen.piece_per_s,
        *[
            (each.agent, each.device, each.slots, each.ready, each.pace, each.remaining_s)
            for each in seen.replicas.values()
        ],
    )
