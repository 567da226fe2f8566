"""Decides, every few seconds, how many replicas of each model are wanted, and tells who listens.

Every process of a gateway decides by what all of them see; only the one that owns the lease acts on it.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import structlog

from gateway.domain.slices import SLICE
from gateway.observability.gauges import Family
from gateway.observability.metric_table import OTHER
from gateway.scaling.class_facts import classes_of
from gateway.scaling.foresight import STATES, Foreseen, Foresight
from gateway.scaling.kept_decisions import KeptDecisions
from gateway.scaling.observation import UNNAMED, SeenModel
from gateway.scaling.settings import ScalingSettings
from gateway.scaling.verdict import ClassVerdict, ModelVerdict, class_verdict
from gateway.scheduling.learning.devices import CLASSES
from gateway.scheduling.learning.performance import Performance
from gateway.scheduling.recent import RecentDict
from gateway.scheduling.scaling.data import ClassFacts, ModelLoad, ScalingRule
from gateway.scheduling.scaling.plan import plan
from gateway.scheduling.scaling.stabilisation import LeadTime, WantedReplicas

MOST_MODELS = 10_000
FORGET_S = 86_400.0
"""A class that nothing was wanted of for so long is forgotten."""

_log = structlog.get_logger(__name__)

See = Callable[[], Awaitable[Mapping[str, SeenModel]]]
"""What all processes see now."""

Figures = dict[tuple[str, ...], float]

OnChange = Callable[[ModelVerdict, str, int, int], None]
"""Is told that another number of a class is wanted: the verdict, the class, from, to."""


class Autoscaler:
    """Belongs to the event loop's thread."""

    def __init__(
        self,
        settings: ScalingSettings,
        see: See,
        performance: Performance,
        clock: Callable[[], float],
        label: Callable[[str], str] = str,
        foresight: Foresight | None = None,
    ) -> None:
        """``label`` gives what a model is called in metrics; without ``foresight`` nobody looks ahead."""
        self._foresight = foresight
        self.settings = settings
        self._see = see
        self._performance = performance
        self._clock = clock
        self._label = label
        self._wanted: dict[tuple[str, str], WantedReplicas] = {}
        self._leads: dict[tuple[str, str], LeadTime] = {}
        self._seen_s: dict[tuple[str, str], float] = {}
        self._latest = RecentDict[str, str](MOST_MODELS)
        """The class on which a model was served last."""
        self._kept = KeptDecisions()
        self._decided = asyncio.Event()
        self.verdicts: dict[str, ModelVerdict] = {}
        """The latest of each model."""
        self.on_change: list[OnChange] = []

    async def run(self) -> None:
        """Decide until this is cancelled."""
        while True:
            try:
                await self.decide()
            except Exception:
                _log.exception("scaling_failed")
            await asyncio.sleep(self.settings.interval_s)

    async def decide(self) -> None:
        """Decide once."""
        seen = await self._see()
        now = self._clock()
        found: dict[str, ModelVerdict] = {}
        reused = 0
        for model, each in list(seen.items())[:MOST_MODELS]:
            verdict = self._kept.good(model, each, self._foresight, now)
            if verdict is None:
                self._kept.end(model, self._need)
                verdict = self.decide_one(model, each, now)
                await asyncio.sleep(0)
            elif (reused := reused + 1) % SLICE == 0:
                await asyncio.sleep(0)
            found[model] = verdict
        self.verdicts = found
        self._kept.forget_others(found)
        self._forget(now)
        self._decided.set()
        self._decided = asyncio.Event()

    async def decisions(self) -> AsyncIterator[Mapping[str, ModelVerdict]]:
        """The verdicts, at once and after every decision."""
        while True:
            decided = self._decided
            yield self.verdicts
            await decided.wait()

    def figures(self) -> Iterator[Family]:
        """For metrics."""
        rows = [
            (self._label(model), self._class_label(device), each)
            for model, verdict in self.verdicts.items()
            for device, each in verdict.classes.items()
        ]

        def family(name: str, text: str, value: Callable[[ClassVerdict], float]) -> Family:
            values: dict[tuple[str, ...], float] = {}
            for model, device, each in rows:
                values[model, device] = values.get((model, device), 0.0) + value(each)
            return Family(name, text, ["model", "class"], values)

        yield family("scaling_wanted_replicas", "Replicas that are wanted.", lambda each: each.wanted)
        yield family("scaling_ready_replicas", "Replicas that can take work.", lambda each: each.ready)
        queued = "What waits, in seconds of one device of the class."
        yield family("scaling_queued_gpu_seconds", queued, lambda each: each.queued_gpu_s)
        if self._foresight is not None:
            yield from self._forecast_figures(rows)

    def _forecast_figures(self, rows: Sequence[tuple[str, str, ClassVerdict]]) -> Iterator[Family]:
        found = [(model, device, each.forecast) for model, device, each in rows if each.forecast is not None]
        names = ["model", "class"]
        states: Figures = {(model, device): float(STATES.index(each.state)) for model, device, each in found}
        text = "Whether the forecast acts: 0 it is off, 1 it learns, 2 it is only told, 3 it acts."
        yield Family("scaling_forecast_state", text, names, states)
        uppers: Figures = {
            (model, device): each.upper_gpu_s for model, device, each in found if each.upper_gpu_s is not None
        }
        text = "What is foreseen at the most for when a new replica is ready: device-seconds in a second."
        yield Family("scaling_forecast_gpu_seconds", text, names, uppers)
        errors: Figures = {
            (model, device): each.error for model, device, each in found if each.error is not None
        }
        text = "How far forecasts were off on days that they had not learnt from, as a share of the load."
        yield Family("scaling_forecast_error", text, names, errors)

    def _class_label(self, device: str) -> str:
        known = device in CLASSES or device in self.settings.classes or device == UNNAMED
        return device if known else OTHER

    def decide_one(self, model: str, seen: SeenModel, now: float) -> ModelVerdict:
        """Decide on one model, by what is seen of it; ``now`` is of the clock that was given."""
        rule, allowed = self.settings.of(model)
        if seen.replicas:
            self._latest[model] = next(iter(seen.replicas.values())).device
        about = (self.settings, self._performance, self._measured_lead, self._latest.get(model))
        facts = classes_of(model, seen, allowed, *about)
        load = ModelLoad(
            seen.per_s, seen.rising_per_s2, seen.waiting, seen.batch_waiting, seen.in_flight, seen.idle_s
        )
        foreseen = self._foreseen(model, facts)
        facts = [_with(each, foreseen.get(each.device), rule) for each in facts]
        together = max((each.together for each in foreseen.values()), default=0)
        least = max(rule.min_replicas, min(together, rule.max_replicas))
        needed = plan(load, facts, replace(rule, min_replicas=least))
        before = {each.device: self._count(model, each, now) for each in facts}
        classes = {}
        for each in facts:
            steady = self._wanted[model, each.device]
            wanted = steady.need(needed.wanted[each.device], rule, each.lead_s, now)
            self._leads[model, each.device].note(wanted, each.ready, now)
            ahead = foreseen.get(each.device)
            if self._foresight is not None:
                piece = None if seen.piece_per_s is None else seen.piece_per_s * each.request_s
                self._foresight.note(model, each, rule, needed.arriving_gpu_s[each.device], piece)
            there = [replica for replica in seen.replicas.values() if replica.device == each.device]
            classes[each.device] = class_verdict(
                each,
                wanted,
                needed.wanted[each.device],
                needed.queued_gpu_s[each.device],
                needed.arriving_gpu_s[each.device],
                there,
                None if ahead is None else ahead.verdict,
            )
        active = load.active or any(each.wanted for each in classes.values())
        waiting = seen.waiting + seen.batch_waiting
        found = ModelVerdict(model, needed.why, active, waiting, seen.in_flight, classes, needed.options)
        for device, verdict in classes.items():
            if verdict.wanted != before[device]:
                self._changed(found, device, before[device], verdict.wanted)
        self._kept.keep(found, seen, facts, rule, self._foresight, now)
        return found

    # --- Within ---

    def _need(self, model: str, facts: ClassFacts, rule: ScalingRule, needed: int, at_s: float) -> None:
        """As much was needed at ``at_s``, too, when no decision was made."""
        self._wanted[model, facts.device].need(needed, rule, facts.lead_s, at_s)

    def _foreseen(self, model: str, facts: Sequence[ClassFacts]) -> dict[str, Foreseen]:
        if self._foresight is None:
            return {}
        return {each.device: self._foresight.foresee(model, each) for each in facts}

    def _count(self, model: str, facts: ClassFacts, now: float) -> int:
        """How many are wanted so far: of what was not looked at before, as many as there are."""
        key = model, facts.device
        if key not in self._wanted:
            self._wanted[key], self._leads[key] = WantedReplicas(facts.present, now), LeadTime()
        self._seen_s[key] = now
        return self._wanted[key].wanted

    def _measured_lead(self, model: str, device: str) -> float | None:
        known = self._leads.get((model, device))
        return None if known is None else known.measured_s

    def _changed(self, verdict: ModelVerdict, device: str, before: int, after: int) -> None:
        what = {"model": verdict.model, "device": device, "before": before, "after": after}
        _log.info("scaling_changed", **what, why=verdict.why)
        for tell in self.on_change:
            tell(verdict, device, before, after)

    def _forget(self, now: float) -> None:
        for key, seen_s in list(self._seen_s.items()):
            if now - seen_s > FORGET_S:
                del self._seen_s[key], self._wanted[key], self._leads[key]


def _with(facts: ClassFacts, foreseen: Foreseen | None, rule: ScalingRule) -> ClassFacts:
    """What is foreseen counts, and what events want at least, as far as the rule allows it."""
    if foreseen is None:
        return facts
    least = max(facts.min_replicas, min(foreseen.of_class, facts.max_replicas, rule.max_replicas))
    return replace(facts, forecast_per_s=foreseen.per_s, min_replicas=least)
