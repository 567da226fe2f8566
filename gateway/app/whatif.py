"""The what-if of the admin API, with the fleet and the settings that it begins with."""

from collections.abc import Callable, Iterable
from typing import Any

from gateway.api.admin.whatif import WhatIfAdmin
from gateway.api.admin.whatif_child import WhatIfRunner
from gateway.cluster.member import ClusterMember
from gateway.dispatch.decisions.records import RequestRecords
from gateway.dispatch.dispatcher import Dispatcher
from gateway.domain.quotas import Price
from gateway.fleet.deployment import Deployment
from gateway.observability.audit.segments import DIRECTORY
from gateway.runtime.config import Settings
from gateway.runtime.workers.siblings import Siblings
from gateway.scheduling.learning.devices import device_class
from gateway.scheduling.learning.performance import Speeds
from gateway.storage import Store

Json = dict[str, Any]


def make_whatif(
    settings: Callable[[], Settings],
    store: Store,
    records: RequestRecords,
    dispatcher: Dispatcher,
    price: Callable[[str], Price],
    weights: Callable[[], dict[str, float]],
    member: ClusterMember | None,
    siblings: Siblings | None,
) -> WhatIfAdmin:
    """``settings`` are those in force; ``price`` is a model's; ``weights`` are those of tenants."""

    def elsewhere() -> list[str]:
        """Processes on other hosts."""
        here = set() if siblings is None else {siblings.own, *siblings.others}
        rows = () if member is None else member.rows
        return sorted(
            each.id for each in rows if each.id != getattr(member, "name", "") and each.id not in here
        )

    def fleet() -> Json:
        return fleet_now(settings(), dispatcher, price, weights()) | {"elsewhere": elsewhere()}

    log = str(store.state_dir / DIRECTORY) if settings().audit.requests else None
    return WhatIfAdmin(fleet, records, log, WhatIfRunner(store.state_dir))


def fleet_now(
    settings: Settings, dispatcher: Dispatcher, price: Callable[[str], Price], weights: dict[str, float]
) -> Json:
    """The deployments that serve, what was learnt of their speed, and how requests are queued:
    :class:`gateway.tools.whatif.fleet.FleetNow`, as JSON."""
    serving = list(_serving(dispatcher))
    models = {each.model for each in serving}
    queue, prices = settings.queue, {model: price(model).gpu_second * 3600 for model in models}
    return {
        "deployments": [_deployment(each) for each in serving],
        "speeds": [
            _speeds(each) for each in dispatcher.scheduling.scheduler.performance if each.reading.known
        ],
        "policy": settings.dispatch.policy,
        "policies": {name: each for name, each in settings.dispatch.policies.items() if name in models},
        "queue": {
            "max_requests": queue.max_requests,
            "max_wait_s": queue.max_wait_s,
            "ageing_s": queue.ageing_s,
            "weights": weights,
        },
        "gpu_hour": {model: each for model, each in prices.items() if each},
    }


def _serving(dispatcher: Dispatcher) -> Iterable[Deployment]:
    for record in dispatcher.registry.index.models.values():
        for each in record.serving.values():
            if _slots(each) > 0 and not each.leaving:
                yield each


def _slots(deployment: Deployment) -> int:
    """All it has: the agent lends each of several processes only some of them."""
    return max(deployment.slots, deployment.promised_slots)


def _deployment(deployment: Deployment) -> Json:
    return {
        "key": deployment.key,
        "model": deployment.model,
        "device": device_class(deployment.device),
        "slots": _slots(deployment),
        "rtt_s": deployment.rtt_s,
        "kv_tokens": deployment.kv_tokens or None,
    }


def _speeds(speeds: Speeds) -> Json:
    return {
        "model": speeds.model,
        "device": speeds.device,
        "reading": speeds.reading.multipliers,
        "writing": speeds.writing.multipliers,
        "reading_common": speeds.reading.common,
        "writing_common": speeds.writing.common,
        "answers": speeds.reading.known,
    }
