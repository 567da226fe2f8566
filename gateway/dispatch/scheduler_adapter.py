"""The scheduler at work in the gateway: told what the index and the attempts know, asked where to go.

Everything is decided in :mod:`gateway.scheduling`, which does not know of sessions, streams or clocks.
Belongs to the event loop's thread.
"""

from collections.abc import Callable, Iterator
from weakref import WeakKeyDictionary

from gateway.dispatch.attempt import Attempt
from gateway.dispatch.work import WORKING, asked_work
from gateway.domain.request import Request
from gateway.fleet.deployment import Deployment, DeploymentOwner
from gateway.fleet.model_index import ModelIndex
from gateway.observability.gauges import PredictionFigures
from gateway.observability.metric_table import OTHER
from gateway.scheduling.base import DeploymentView, Outcome, PendingRequest
from gateway.scheduling.elsewhere import RequestsElsewhere
from gateway.scheduling.learning.devices import CLASSES
from gateway.scheduling.learning.estimates import OutputEstimates
from gateway.scheduling.scheduler import Scheduler
from shared.protocol.messages import Usage
from shared.protocol.others import Expected, Others

QUANTILES = (0.5, 0.9)
"""Quantiles of prediction errors that are exported."""

CONTEXT_TOKENS = 4096
"""The context of a model whose agents do not report it."""

UNIT_TOKENS = 100.0
"""A unit of work (:mod:`shared.protocol.work`) in input tokens. How long it takes is learnt. It is taken for
so few because it is proportional to time, and prompts are not: of tens of thousands of tokens, each takes
longer than one of a few."""

MOST_WORK_TOKENS = 10_000_000

_NOTHING_LEARNT = Outcome(ok=False, total_s=0.0)


class SchedulerAdapter:
    """One for a dispatcher."""

    def __init__(self, index: ModelIndex, policy: str, clock: Callable[[], float]) -> None:
        """Raises ValueError for a policy there is none of."""
        self._index = index
        self.scheduler = Scheduler(policy)
        self._estimates = OutputEstimates()
        self._clock = clock
        self._elsewhere: WeakKeyDictionary[DeploymentOwner, RequestsElsewhere] = WeakKeyDictionary()
        """What the agents of sessions run for other processes."""
        index.watch_serving(self._came, self._gone)

    def predictions(self) -> Iterator[PredictionFigures]:
        """How far predictions were off, where there were any."""
        for speeds in list(self.scheduler.performance):  # who asks may wait between
            device = speeds.device if speeds.device in CLASSES else OTHER
            for of, errors in (
                ("first_token", speeds.accuracy.first_token),
                ("total", speeds.accuracy.total),
            ):
                if errors.count:
                    off = {f"{quantile:g}": errors.error_factor(quantile) for quantile in QUANTILES}
                    yield PredictionFigures(speeds.model, device, of, errors.bias, off)

    def estimate(self, request: Request) -> None:
        """Fill in how many tokens it will take, as far as its prompt is known, by what others took."""
        if request.route in WORKING:
            self._estimate_work(request)
        if not request.prompt_bytes:
            return
        model, tenant = request.model, request.principal.tenant
        request.input_tokens = self._estimates.input_tokens(model, request.prompt_bytes)
        if request.output_tokens:
            guess = self._estimates.output(model, tenant, request.most_tokens, request.output_tokens)
            request.output_tokens = guess.expected

    def bounds(self, request: Request) -> tuple[int, int]:
        """How many tokens its prompt has, as far as can be known, and how many its answer has at most:
        as many as it allows, else what few answers go beyond that nothing limits, and where too few such
        are known, as many as the model's context holds. Nothing is changed."""
        input_tokens, most_tokens = request.input_tokens, request.most_tokens
        if request.prompt_bytes:
            input_tokens = self._estimates.input_tokens(request.model, request.prompt_bytes)
        if most_tokens is not None or not request.output_tokens:
            return input_tokens, most_tokens or 0
        context = self._index.largest_context(request.model) or CONTEXT_TOKENS
        room = max(1, context - input_tokens)
        if not request.endless:
            room = self._estimates.unlimited(request.model, request.principal.tenant, room)
        return input_tokens, room * request.choices

    def _estimate_work(self, request: Request) -> None:
        """Fill in how much work pictures or videos are, if what serves the model says what that goes by. So
        much is read for the scheduler, as a prompt is, and nothing of it is cached."""
        work = asked_work(request.route, request.path, request.body)
        units = None if work is None else work.units_by(self._index.work_scale(request.model))
        if units is not None:
            request.work_tokens = min(round(units * UNIT_TOKENS), MOST_WORK_TOKENS)
            request.prefix = ()

    # --- What becomes of attempts ---

    def taken(self, item: PendingRequest, attempt: Attempt) -> None:
        """A request got a slot. One that has another there that is still being let go is not followed."""
        number, deployment = item.number, attempt.deployment
        if number not in deployment.load.running:
            attempt.followed = number
            asked = self.scheduler.placed(item, deployment, attempt.opened_s)
            if deployment.kv_tokens is not None:
                attempt.kv_tokens = asked.uncached_tokens + asked.output_tokens
                deployment.hold_kv(attempt.kv_tokens)

    def began(self, attempt: Attempt, now: float) -> bool:
        """The first piece of a streamed answer came. Whether it came so early that a request which is held
        back may be placed now."""
        if attempt.decision is not None:
            attempt.decision.first_piece_s = now
        if attempt.followed is None:
            return False
        attempt.first_piece_s = now
        return self.scheduler.first_token(attempt.followed, attempt.deployment, now)

    def succeeded(self, attempt: Attempt, total_s: float, usage: Usage | None) -> None:
        """Its answer came whole, and it was all of the answer."""
        request = attempt.request
        if usage is not None:
            self._estimates.learn(
                request.model,
                request.principal.tenant,
                size_bytes=request.prompt_bytes,
                input_tokens=usage.prompt_tokens,
                output_tokens=usage.completion_tokens,
                most_tokens=request.most_tokens,
            )
            if request.most_tokens is None and not request.endless:
                each = -(-usage.completion_tokens // request.choices)
                self._estimates.learn_unlimited(request.model, request.principal.tenant, each)
        if attempt.away_s:
            return  # its times are the tunnel's too
        if request.work_tokens:  # what is sent first says nothing of it, nor do tokens
            attempt.outcome = Outcome(ok=True, total_s=total_s, output_tokens=0)
            return
        first_s = None if attempt.first_piece_s is None else attempt.first_piece_s - attempt.opened_s
        if usage is None:
            attempt.outcome = Outcome(True, total_s, first_s)
            return
        attempt.outcome = Outcome(
            True, total_s, first_s, usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens
        )

    def released(self, attempt: Attempt, now: float) -> None:
        """Its slot is free."""
        number, deployment = attempt.followed, attempt.deployment
        if attempt.kv_tokens is not None:
            deployment.free_kv(attempt.kv_tokens)
        if number is not None:
            self.scheduler.finished(number, deployment, attempt.outcome or _NOTHING_LEARNT, now)

    # --- Other processes ---

    def expected(self, item: PendingRequest) -> Expected:
        """What other processes are to hear of a request."""
        return Expected.of(item.input_tokens, item.output_tokens, item.prefix)

    def others(self, session: DeploymentOwner, others: Others) -> set[str]:
        """An agent has said what it runs for other processes. Returns the models whose waiting requests may
        be placed now. Raises ProtocolError."""
        elsewhere = self._elsewhere.get(session)
        if elsewhere is None:
            elsewhere = RequestsElsewhere(self.scheduler, placed=_hold_kv, ended=_free_kv)
            self._elsewhere[session] = elsewhere
        return elsewhere.take(others, session.deployments.get, self._clock())

    # --- Who serves ---

    def load_s(self, deployment: Deployment) -> tuple[float, bool]:
        """How long loading it takes, and whether this was reported or measured; otherwise it is a guess."""
        if deployment.reload_s is not None:
            return deployment.reload_s, True
        speeds = self.scheduler.performance.speeds(deployment.model, deployment.device)
        return speeds.load_s, speeds.loads > 0

    def _came(self, deployment: Deployment) -> None:
        self.scheduler.deployment_added(deployment, self._clock())

    def _gone(self, deployment: Deployment) -> None:
        self.scheduler.deployment_removed(deployment, self._clock())


def _hold_kv(view: DeploymentView, tokens: int) -> None:
    if isinstance(view, Deployment):
        view.hold_kv(tokens)


def _free_kv(view: DeploymentView, tokens: int) -> None:
    if isinstance(view, Deployment):
        view.free_kv(tokens)
