"""How long a request would run and what it would cost, by what the scheduler has learnt. Nothing is decided
by it: clients of jobs are told."""

from collections.abc import Callable, Sequence
from itertools import islice

from msgspec import structs

from gateway.dispatch.scheduler_adapter import SchedulerAdapter
from gateway.domain.jobs import JobEstimate
from gateway.domain.quotas import FREE, Price
from gateway.domain.request import Request
from gateway.fleet.deployment import Deployment
from gateway.fleet.model_index import ModelIndex
from gateway.scheduling.base import DeploymentConstraints

_LOOKED_AT = 16
"""Deployments of a model that are compared."""


class DispatchOutlook:
    """Of one dispatcher. Belongs to the event loop's thread."""

    def __init__(
        self,
        index: ModelIndex,
        scheduling: SchedulerAdapter,
        price: Callable[[str], Price],
        resolve: Callable[[str], Sequence[str]] = lambda name: (name,),
    ) -> None:
        """``resolve`` gives the models that a name stands for, the likeliest first."""
        self._index = index
        self._scheduling = scheduling
        self._price = price
        self._resolve = resolve

    def estimate(self, request: Request) -> JobEstimate:
        """Of ``request``, which is not changed, at the deployment that would be fastest with all its slots
        taken. Without a deployment, or where nothing was observed of the model's speed, nothing is known."""
        for model in self._resolve(request.model):
            asked = structs.replace(request, model=model)
            self._scheduling.estimate(asked)
            fit = DeploymentConstraints.of(asked)
            serving = (each for each in self._serving(model) if each.slots and each.suits(fit))
            times = [
                (seconds, each.slots)
                for each in islice(serving, _LOOKED_AT)
                if (seconds := self._seconds(asked, each)) is not None
            ]
            if times:
                seconds, slots = min(times)
                return JobEstimate(seconds, self._cost(asked, seconds / slots))
        return JobEstimate()

    def slots(self, model: str) -> int:
        """How many requests for a model, or an alias, run at once."""
        known = (self._index.models.get(each) for each in self._resolve(model))
        return sum(record.slots for record in known if record is not None)

    def _serving(self, model: str) -> Sequence[Deployment]:
        record = self._index.models.get(model)
        return () if record is None else tuple(record.serving.values())

    def _seconds(self, request: Request, deployment: Deployment) -> float | None:
        speeds = self._scheduling.scheduler.performance.speeds(deployment.model, deployment.device)
        if not speeds.reading.known and not speeds.writing.known:
            return None
        load, slots = deployment.load, deployment.slots
        kv_tokens = slots * (request.input_tokens + request.output_tokens)
        read_tokens = request.input_tokens + request.work_tokens
        read_s = (speeds.fixed_s + speeds.read_s(read_tokens)) * load.reading_pace
        write_s = speeds.output_s(request.output_tokens, slots, kv_tokens, load.reading_share)
        return deployment.rtt_s + read_s + write_s * load.writing_pace

    def _cost(self, request: Request, gpu_s: float) -> float | None:
        price = self._price(request.model)
        if price is FREE:
            return None
        return price.of_tokens(request.input_tokens, request.output_tokens) + price.gpu_second * gpu_s
