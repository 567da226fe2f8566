"""Two plans of one fleet: as it is, and with what a what-if changes."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gateway.api.admin.whatif_body import AddedDeployments, RemovedDeployments, WhatIfBody
from gateway.scheduling import POLICIES
from gateway.scheduling.learning.devices import CLASSES, device_class
from gateway.tools.simulate.inputs import BadSpec
from gateway.tools.whatif.fleet import FleetNow, QueueNow, ServingDeployment
from gateway.tools.whatif.speeds import SpeedsThere, speeds_there

MOST_SITES = 20_000
"""Deployments in one plan."""


@dataclass(frozen=True, slots=True)
class PlannedDeployment:
    """A deployment in a plan."""

    key: str
    model: str
    speeds: SpeedsThere
    slots: int
    rtt_s: float
    kv_tokens: int | None
    gpu_hour: float | None
    """What an hour of it costs; None: nobody has said."""

    @property
    def device(self) -> str:
        return self.speeds.device


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """What requests are replayed on."""

    deployments: Mapping[str, Sequence[PlannedDeployment]]
    """By model."""
    default: str
    policies: Mapping[str, str]
    queue: QueueNow
    scale: float = 1.0

    def policy_of(self, model: str) -> str:
        return self.policies.get(model, self.default)


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """Both plans, and what is different between them."""

    before: FleetPlan
    after: FleetPlan
    words: tuple[str, ...]
    """What changes, for people; empty: nothing."""
    notes: tuple[str, ...]
    """What was assumed of what is added."""


def planned(fleet: FleetNow, body: WhatIfBody) -> PlannedChange:
    """Raises BadSpec, whose ``option`` is the member of the body that cannot be."""
    before = _plan_of(fleet, body)
    words: list[str] = []
    notes: list[str] = []
    deployments = {model: list(each) for model, each in before.deployments.items()}
    for removed in body.remove:
        _remove(deployments, removed, words)
    _reslot(deployments, body.slots, words)
    for number, added in enumerate(body.add):
        _add(deployments, before, fleet, added, number, body.gpu_hour, words, notes)
    if sum(map(len, deployments.values())) > MOST_SITES:
        raise BadSpec("add", f"more than {MOST_SITES:,} deployments are not simulated")
    after = replace(before, deployments=deployments, scale=body.scale)
    if body.policy is not None:
        if body.policy not in POLICIES:
            known = ", ".join(sorted(POLICIES))
            raise BadSpec("policy", f"no policy is called {body.policy!r}; there are: {known}")
        after = replace(after, default=body.policy, policies={})
        words.append(f"policy {body.policy}")
    if body.scale != 1.0:
        words.append(f"requests come {body.scale:g} times as fast")
    queue = before.queue
    if body.max_requests is not None:
        queue = replace(queue, max_requests=body.max_requests)
        words.append(f"{body.max_requests:,} requests may wait for a model")
    if body.max_wait_s is not None:
        queue = replace(queue, max_wait_s=body.max_wait_s)
        words.append(f"a request waits for {body.max_wait_s:g} s at most")
    return PlannedChange(before, replace(after, queue=queue), tuple(words), tuple(notes))


def _plan_of(fleet: FleetNow, body: WhatIfBody) -> FleetPlan:
    """The fleet as it is."""
    known: dict[tuple[str, str], SpeedsThere] = {}
    deployments: dict[str, list[PlannedDeployment]] = {}
    for each in fleet.deployments:
        pair = each.model, each.device
        if pair not in known:
            known[pair] = speeds_there(*pair, fleet.speeds)
        price = fleet.gpu_hour.get(each.model, body.gpu_hour)
        deployments.setdefault(each.model, []).append(
            PlannedDeployment(
                each.key, each.model, known[pair], each.slots, each.rtt_s, each.kv_tokens, price
            )
        )
    return FleetPlan(deployments, fleet.policy, fleet.policies, fleet.queue)


def _model(name: str | None, deployments: Mapping[str, object], option: str) -> str:
    if name is not None:
        if name not in deployments:
            raise BadSpec(option, f"nothing serves a model {name!r} now; there are: {_listed(deployments)}")
        return name
    if len(deployments) != 1:
        raise BadSpec(
            option,
            f"say of which model (in a body as the member model, on a command line behind an @, as in "
            f"2*l4@{min(deployments, default='MODEL')}); there are: {_listed(deployments)}",
        )
    return next(iter(deployments))


def _listed(names: Mapping[str, object]) -> str:
    return ", ".join(sorted(names)[:20]) or "none"


def _remove(
    deployments: dict[str, list[PlannedDeployment]], removed: RemovedDeployments, words: list[str]
) -> None:
    model = _model(removed.model, deployments, "remove")
    device = None if removed.device is None else device_class(removed.device)
    there = deployments[model]
    able = [each for each in there if device is None or each.device == device]
    where = "" if device is None else f" on {device}"
    if len(able) < removed.count:
        raise BadSpec("remove", f"{model} has {len(able)} deployments{where}, not {removed.count}")
    if len(there) == removed.count:
        raise BadSpec("remove", f"no deployment of {model} would be left")
    gone = {each.key for each in able[-removed.count :]}
    deployments[model] = [each for each in there if each.key not in gone]
    words.append(f"{removed.count} fewer {_counted(removed.count)} of {model}{where}")


def _reslot(
    deployments: dict[str, list[PlannedDeployment]], slots: Mapping[str, int], words: list[str]
) -> None:
    for name, count in slots.items():
        model = _model(name, deployments, "slots")
        deployments[model] = [replace(each, slots=count) for each in deployments[model]]
        words.append(f"{count} slots on each deployment of {model}")


def _add(
    deployments: dict[str, list[PlannedDeployment]],
    before: FleetPlan,
    fleet: FleetNow,
    added: AddedDeployments,
    number: int,
    gpu_hour: float | None,
    words: list[str],
    notes: list[str],
) -> None:
    model = _model(added.model, deployments, "add")
    there = before.deployments[model]
    usual = Counter(each.device for each in there).most_common(1)[0][0]
    device = usual if added.device is None else device_class(added.device)
    if device not in CLASSES and all(each.device != device for each in there) and not added.tokens_per_s:
        raise BadSpec(
            "add",
            f"nothing is known of a device {added.device!r}: say its tokens_per_s, or name one of "
            f"{', '.join(CLASSES)}",
        )
    speeds = speeds_there(model, device, fleet.speeds).at(added.tokens_per_s, added.prompt_tokens_per_s)
    slots, why = (added.slots, "") if added.slots is not None else _slots_on(device, there)
    alike = [each for each in there if each.device == device]
    price = added.gpu_hour if added.gpu_hour is not None else _price(alike, gpu_hour)
    kv_tokens = min((each.kv_tokens for each in alike if each.kv_tokens is not None), default=None)
    rtt_s = sorted(each.rtt_s for each in there)[len(there) // 2]
    for each in range(added.count):
        key = f"added-{number}-{each}/{model}"
        deployments[model].append(PlannedDeployment(key, model, speeds, slots, rtt_s, kv_tokens, price))
    name = device or "devices like those there"
    words.append(f"{added.count} more {_counted(added.count)} of {model} on {name}, {slots} slots each")
    if why:
        notes.append(why)
    notes.append(
        f"What is added has its model loaded from the start, at a round trip of {rtt_s * 1000:.1f} ms, the "
        f"median of {model}."
    )
    if kv_tokens is None:
        notes.append(f"Memory for context on what is added ({name}) is not limited: nothing is known of it.")


def _counted(count: int) -> str:
    return "deployment" if count == 1 else "deployments"


def _price(alike: Sequence[PlannedDeployment], gpu_hour: float | None) -> float | None:
    known = [each.gpu_hour for each in alike if each.gpu_hour is not None]
    return known[0] if known else gpu_hour


def _slots_on(device: str, there: Sequence[ServingDeployment | PlannedDeployment]) -> tuple[int, str]:
    """How many slots one that is added has, and why that is assumed; empty where it need not be said."""
    alike = Counter(each.slots for each in there if each.device == device)
    if alike:
        return alike.most_common(1)[0][0], ""
    slots = sorted(each.slots for each in there)[len(there) // 2]
    others = Counter(each.device for each in there if each.slots == slots)
    other = others.most_common(1)[0][0]
    if device in CLASSES and other in CLASSES:
        share = CLASSES[device].memory_gb / CLASSES[other].memory_gb
        scaled = max(1, math.floor(slots * share))
        return scaled, (
            f"Each {device} is taken to have {scaled} slots: {slots} on {other}, by the memory of both "
            f"({CLASSES[device].memory_gb:g} and {CLASSES[other].memory_gb:g} GB)."
        )
    return slots, f"Each {device or 'device'} that is added is taken to have {slots} slots, the median."
