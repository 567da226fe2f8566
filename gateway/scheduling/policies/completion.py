"""When a request would be done at a deployment: the prediction that the policy ``cost`` compares."""

from dataclasses import dataclass
from typing import NamedTuple

from gateway.scheduling.base import DeploymentView, PendingRequest
from gateway.scheduling.learning.knowledge import Knowledge
from gateway.scheduling.learning.performance import Speeds


class Weights(NamedTuple):
    """Weights of a second before the first token, and of a second that a request costs others, relative to a
    second after its first token."""

    first: float
    others: float


GATEWAY_QUEUE_WEIGHTS = Weights(1.5, 1.0)
"""Where prompts wait in the gateway. Tuned on the first halves of two public traces (docs/scheduling.md)."""

ENGINE_QUEUE_WEIGHTS = Weights(2.5, 0.6)
"""Where they wait in engines: there what a request costs others is counted too high, for those ahead of it do
not wait for it, and what is good for the many is bad for the slowest hundredth."""

LATE_SHARE = 1.0
"""How much each second of a first token beyond what the client wants adds to its cost."""


@dataclass(slots=True)
class RoundLoad:
    """What was given to one deployment in this round, and is not counted in its load yet."""

    count: int = 0
    read_s: float = 0.0
    kv_tokens: int = 0

    def add(self, read_s: float, kv_tokens: int) -> None:
        self.count += 1
        self.read_s += read_s
        self.kv_tokens += kv_tokens


class _Plan(NamedTuple):
    """How long a request takes on one class of device, in seconds, if nothing of its prompt is cached."""

    speeds: Speeds
    first_s: float
    steps_s: float
    each_s: float
    """Added for each request that runs at the same time, itself included."""
    kv_s: float
    """Added for each token of context of the requests that run at the same time."""
    others_s: float
    """How much it delays each of the other requests."""


class Completion:
    """Predictions for one request at one time."""

    def __init__(
        self,
        item: PendingRequest,
        knowledge: Knowledge,
        given: dict[str, RoundLoad],
        now: float,
        weights: Weights = GATEWAY_QUEUE_WEIGHTS,
    ) -> None:
        """``given`` is what each deployment was given in this round, by key."""
        self._item = item
        self._knowledge = knowledge
        self._given = given
        self._now = now
        self._first_weight, self._others_weight = weights
        self._context_tokens = item.input_tokens + item.output_tokens
        self._slack_s = None if item.ttft_s is None else item.arrived_s + item.ttft_s - now
        self._by_device: dict[str, _Plan] = {}

    def cost_s(self, view: DeploymentView, cached_tokens: int, slot_s: float = 0.0) -> float:
        """Weighted seconds until it would be done at ``view``, with what it costs others. ``cached_tokens``
        of its prompt are cached there, and a slot is free after ``slot_s``."""
        plan = self._by_device.get(view.device)
        if plan is None:
            plan = self._plan(view)
        speeds, first_s, steps_s, each_s, kv_s, others_s = plan
        load, running = view.load, view.in_flight
        kv_tokens, wait_s = load.kv_tokens + self._context_tokens, load.ready_s - self._now
        if self._given and view.key in self._given:
            given = self._given[view.key]
            running += given.count
            kv_tokens += given.kv_tokens
            wait_s = max(wait_s, 0.0) + given.read_s
        if wait_s < slot_s:
            wait_s = slot_s
        if cached_tokens:
            cached_tokens = int(cached_tokens * speeds.hit_share)
            warm_s = speeds.fixed_s + speeds.read_s(self._item.input_tokens - cached_tokens, cached_tokens)
            others_s += self._others_weight * (warm_s - first_s)
            first_s = warm_s
        if not view.loaded:
            wait_s += speeds.load_s if view.load_s is None else view.load_s
        rest_s = (steps_s + each_s * (running + 1) + kv_s * kv_tokens) * load.writing_pace
        if running:
            rest_s = rest_s / (1.0 - load.reading_share) + others_s * running * load.reading_pace
        first_s = wait_s + first_s * load.reading_pace + view.rtt_s
        if self._slack_s is not None and first_s > self._slack_s:
            wait_s = LATE_SHARE * (first_s - self._slack_s)
            first_s += wait_s
        return (self._first_weight * first_s + rest_s) / view.health_factor

    def read_s(self, view: DeploymentView, cached_tokens: int) -> float:
        """How long ``view`` will read its prompt."""
        speeds = self._knowledge.speeds(view)
        cached_tokens = int(cached_tokens * speeds.hit_share)
        return speeds.read_s(self._item.input_tokens - cached_tokens, cached_tokens) * view.load.reading_pace

    def _plan(self, view: DeploymentView) -> _Plan:
        speeds, output = self._knowledge.speeds(view), self._item.output_tokens
        read_s = speeds.read_s(self._item.input_tokens)
        plan = self._by_device[view.device] = _Plan(
            speeds,
            speeds.fixed_s + read_s,
            output * speeds.step_s,
            output * speeds.each_s,
            output * speeds.kv_s,
            self._others_weight * (read_s + 0.5 * output * speeds.each_s),
        )
        return plan
