"""What was known of a deployment when a request was placed, and what was predicted from that, by part.

A decision notes plain facts, which takes well under a microsecond for each deployment. The prediction is
computed from them only when somebody asks why: it is the one of
:class:`gateway.scheduling.policies.completion.Completion`, part by part.
"""

from typing import NamedTuple

from msgspec import Struct

from gateway.scheduling.learning.performance import Coefficients
from gateway.scheduling.policies.completion import GATEWAY_QUEUE_WEIGHTS, LATE_SHARE, Weights


class Candidate(Struct, frozen=True, gc=False):
    """One deployment at the moment of a decision, before the request was there. No reference leads to the
    deployment itself, so that a record keeps none alive."""

    key: str
    agent: str
    version: str
    device: str
    excluded: str | None
    """Why it could not take the request, a code of :mod:`gateway.dispatch.decisions.words`."""
    slots: int
    in_flight: int
    cached_tokens: int
    """Of the prompt, as was believed."""
    hit_share: float
    """The share of such beliefs that come true."""
    ready_s: float
    """When the prompts placed there before will be read, on the gateway's clock."""
    kv_tokens: int
    """Context of what runs there."""
    reading_pace: float
    writing_pace: float
    reading_share: float
    health_factor: float
    rtt_s: float
    load_s: float
    """How long its model takes to load; 0: it is loaded."""
    speeds: Coefficients


class Prediction(NamedTuple):
    """Seconds, by part."""

    queue_s: float
    """Prompts that are read before."""
    load_s: float
    transfer_s: float
    """The round trip of its tunnel."""
    prefill_s: float
    decode_s: float
    others_s: float
    """What it costs those that run there."""
    late_s: float
    """What its first token counts more because it comes later than the client wants it."""
    health: float
    """What all of it is divided by."""
    weighed_s: float
    """What the policy ``cost`` compares."""

    @property
    def first_token_s(self) -> float:
        return self.queue_s + self.load_s + self.transfer_s + self.prefill_s

    @property
    def total_s(self) -> float:
        return self.first_token_s + self.decode_s


def predict(
    candidate: Candidate,
    input_tokens: int,
    output_tokens: int,
    now: float,
    slack_s: float | None = None,
    weights: Weights = GATEWAY_QUEUE_WEIGHTS,
) -> Prediction:
    """What was predicted at ``now`` of a request with so many tokens at ``candidate``; ``slack_s`` is what
    was left until the client wanted its first token."""
    speeds, running = candidate.speeds, candidate.in_flight
    cached = int(candidate.cached_tokens * candidate.hit_share)
    alone_s = speeds.fixed_s + speeds.read_s(input_tokens, 0)
    prefill_s = speeds.fixed_s + speeds.read_s(input_tokens - cached, cached)
    queue_s = max(candidate.ready_s - now, 0.0)
    kv_tokens = candidate.kv_tokens + input_tokens + output_tokens
    step_s = speeds.step_s + speeds.each_s * (running + 1) + speeds.kv_s * kv_tokens
    decode_s, others_s = output_tokens * step_s * candidate.writing_pace, 0.0
    if running:
        decode_s /= 1.0 - candidate.reading_share
        read_s = alone_s - speeds.fixed_s + (prefill_s - alone_s)
        each_s = weights.others * (read_s + 0.5 * output_tokens * speeds.each_s)
        others_s = each_s * running * candidate.reading_pace
    prefill_s *= candidate.reading_pace
    first_s = queue_s + candidate.load_s + prefill_s + candidate.rtt_s
    late_s = 0.0 if slack_s is None else max(0.0, LATE_SHARE * (first_s - slack_s))
    weighed_s = (weights.first * (first_s + late_s) + decode_s + others_s) / candidate.health_factor
    return Prediction(
        queue_s,
        candidate.load_s,
        candidate.rtt_s,
        prefill_s,
        decode_s,
        others_s,
        late_s,
        candidate.health_factor,
        weighed_s,
    )
