"""What each class of device can do for a model: by measured speeds where there are any."""

import math
from collections.abc import Callable, Mapping, Sequence

from gateway.scaling.observation import UNNAMED, SeenModel, SeenReplica
from gateway.scaling.settings import ClassSettings, ScalingSettings
from gateway.scheduling.learning.performance import Performance, Speeds
from gateway.scheduling.scaling.data import ClassFacts

HOLD_GUESS_S = 2.0
"""How long a request is taken to keep its slot while nothing is known of its model."""

SLOTS_GUESS = 8
LEAST_REQUEST_S = 1e-6

Lead = Callable[[str, str], float | None]
"""How long a replica of a model on a class took to be ready, as was measured."""


def classes_of(
    model: str,
    seen: SeenModel,
    allowed: Sequence[str],
    settings: ScalingSettings,
    performance: Performance,
    lead: Lead,
    latest: str | None = None,
) -> list[ClassFacts]:
    """The classes on which ``model`` is served, and those on which it may be. Where there are none it is
    that on which it was served last, ``latest``."""
    there: dict[str, list[SeenReplica]] = {name: [] for name in allowed}
    for each in seen.replicas.values():
        there.setdefault(each.device, []).append(each)
    if not there:
        there[UNNAMED if latest is None else latest] = []
    usual = _mean([each.slots for each in seen.replicas.values() if each.slots]) or SLOTS_GUESS
    return [
        _facts(model, device, replicas, usual, seen, settings, performance, lead)
        for device, replicas in there.items()
    ]


def _facts(
    model: str,
    device: str,
    replicas: Sequence[SeenReplica],
    usual_slots: float,
    seen: SeenModel,
    settings: ScalingSettings,
    performance: Performance,
    lead: Lead,
) -> ClassFacts:
    given: Mapping[str, ClassSettings] = settings.classes
    own = given.get(device, ClassSettings())
    slots = max(1, round(own.slots or _mean([each.slots for each in replicas if each.slots]) or usual_slots))
    pace = _mean([each.pace for each in replicas if each.ready]) or 1.0
    rtt_s = max((each.rtt_s for each in replicas), default=0.0)
    speeds = performance.speeds(model, "" if device == UNNAMED else device)
    if seen.known and performance.is_measured(model):
        request_s, first_s, total_s, usual_s = _times(speeds, seen, slots)
        measured = bool(speeds.reading.known)
    else:
        request_s = (HOLD_GUESS_S if seen.hold_s is None else seen.hold_s) / slots
        first_s = total_s = usual_s = 0.0
        measured = seen.hold_s is not None and bool(replicas)
    known_s = lead(model, device)
    if known_s is None:
        known_s = max(own.ready_s or settings.ready_s, speeds.load_s if speeds.loads else 0.0)
    return ClassFacts(
        device,
        slots,
        max(LEAST_REQUEST_S, request_s * pace),
        first_s * pace + rtt_s,
        total_s * pace + rtt_s,
        measured,
        sum(each.ready for each in replicas),
        sum(not each.ready for each in replicas),
        known_s,
        own.price_hour,
        own.min_replicas,
        own.max_replicas,
        usual_first_s=usual_s * pace + rtt_s,
    )


def _times(speeds: Speeds, seen: SeenModel, slots: int) -> tuple[float, float, float, float]:
    """Device-seconds of a mean request with all slots taken; until the first token of a long one; until the
    end of a long answer to it; until the first token of a mean one."""
    context = seen.input_tokens + 0.5 * seen.output_tokens
    read_s = speeds.read_s(seen.input_tokens)
    token_s = speeds.step_s / slots + speeds.each_s + speeds.kv_s * context
    request_s = read_s + seen.output_tokens * token_s
    first_s = speeds.fixed_s + speeds.read_s(seen.high_input_tokens)
    share = min(0.7, read_s / request_s) if request_s > 0 else 0.0
    written_s = speeds.output_s(seen.high_output_tokens, slots, slots * context, share)
    return request_s, first_s, first_s + written_s, speeds.fixed_s + read_s


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0
