"""The scheduler at work in the gateway: told what the index and the attempts know, asked where to go.

Everything is decided in :mod:`gateway.scheduling`, which does not know of sessions, streams or clocks.
Belongs to the event loop's thread.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from gateway.dispatch.attempt import Attempt
from gateway.domain.request import Request
from gateway.fleet.deployment import Deployment
from gateway.fleet.model_index import ModelIndex
from gateway.observability.gauges import PredictionFigures
from gateway.observability.metric_table import OTHER
from gateway.scheduling.base import Assignment, DeploymentView, Outcome, Waiting
from gateway.scheduling.learning.devices import CLASSES
from gateway.scheduling.learning.estimates import OutputEstimates
from gateway.scheduling.learning.performance import Performance
from gateway.scheduling.scheduler import Scheduler
from shared.protocol.messages import Usage

QUANTILES = (0.5, 0.9)
"""Of prediction errors, for export."""

CONTEXT_TOKENS = 4096
"""Of a model whose agents do not say what it holds."""

_NOTHING_LEARNT = Outcome(ok=False, total_s=0.0)


class Decisions:
    """One for a dispatcher."""

    def __init__(self, index: ModelIndex, policy: str, clock: Callable[[], float]) -> None:
        """Raises ValueError for a policy there is none of."""
        self._index = index
        self._scheduler = Scheduler(policy)
        self._estimates = OutputEstimates()
        self._clock = clock
        self._followed: dict[Attempt, int] = {}
        """What the scheduler was told of and is to hear the end of, and its ticket's number."""
        self._places: set[tuple[int, str]] = set()
        """Numbers and deployments of these."""
        self._outcomes: dict[Attempt, Outcome] = {}
        self._kv_tokens: dict[Attempt, int] = {}
        """What they hold of their deployment's memory for context, where that is known."""
        index.watch_serving(self._came, self._gone)

    def choose_policies(self, default: str, named: Mapping[str, str]) -> None:
        """Policies from now on, by model where ``named``. Raises ValueError; nothing has changed then."""
        self._scheduler.choose_policies(default, named)

    @property
    def performance(self) -> Performance:
        """What was learnt of models on devices."""
        return self._scheduler.performance

    def predictions(self) -> Iterator[PredictionFigures]:
        """How far predictions were off, where there were any."""
        for speeds in list(self.performance):  # who asks may wait between
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

    def assign(
        self, model: str, waiting: Sequence[Waiting], open_now: Mapping[str, Deployment], now: float
    ) -> list[Assignment]:
        """Who goes where, now, of those that wait for ``model``."""
        views: list[DeploymentView] = list(open_now.values())
        return self._scheduler.assign(model, waiting, views, now)

    def rests(self, model: str, now: float) -> bool:
        """Whether nobody would get anything now, whoever waits for ``model``."""
        return self._scheduler.is_resting(model, now)

    def look_again_s(self, model: str) -> float | None:
        """When to ask again though nothing has happened."""
        return self._scheduler.look_again_s(model)

    # --- What becomes of attempts ---

    def taken(self, item: Waiting, attempt: Attempt) -> None:
        """A request got a slot. One that has another there that is still being let go is not followed."""
        place = item.number, attempt.deployment.key
        if place not in self._places:
            self._places.add(place)
            self._followed[attempt] = item.number
            asked = self._scheduler.placed(item, attempt.deployment, attempt.opened_s)
            if attempt.deployment.kv_tokens is not None:
                self._kv_tokens[attempt] = tokens = asked.uncached_tokens + asked.output_tokens
                attempt.deployment.hold_kv(tokens)

    def began(self, attempt: Attempt, now: float) -> bool:
        """The first of a streamed answer came. Whether it came so early that somebody who is held may be
        placed now."""
        number = self._followed.get(attempt)
        if number is None:
            return False
        attempt.first_piece_s = now
        return self._scheduler.first_token(number, attempt.deployment, now)

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
            )
            if request.most_tokens is None and not request.endless:
                each = -(-usage.completion_tokens // request.choices)
                self._estimates.learn_unlimited(request.model, request.principal.tenant, each)
        if attempt.away_s:
            return  # its times are the tunnel's too
        first_s = None if attempt.first_piece_s is None else attempt.first_piece_s - attempt.opened_s
        self._outcomes[attempt] = Outcome(
            ok=True,
            total_s=total_s,
            first_token_s=first_s,
            input_tokens=None if usage is None else usage.prompt_tokens,
            output_tokens=None if usage is None else usage.completion_tokens,
            cached_tokens=None if usage is None else usage.cached_tokens,
        )

    def released(self, attempt: Attempt) -> None:
        """Its slot is free."""
        outcome = self._outcomes.pop(attempt, _NOTHING_LEARNT)
        number = self._followed.pop(attempt, None)
        kv_tokens = self._kv_tokens.pop(attempt, None) if self._kv_tokens else None
        if kv_tokens is not None:
            attempt.deployment.free_kv(kv_tokens)
        if number is not None:
            self._places.remove((number, attempt.deployment.key))
            self._scheduler.finished(number, attempt.deployment, outcome, self._clock())

    # --- Who serves ---

    def load_s(self, deployment: Deployment) -> tuple[float, bool]:
        """How long loading it takes, and whether somebody said so or it was seen; it is a guess
        otherwise."""
        if deployment.reload_s is not None:
            return deployment.reload_s, True
        speeds = self.performance.speeds(deployment.model, deployment.device)
        return speeds.load_s, speeds.loads > 0

    def loaded(self, deployment: Deployment, took_s: float) -> None:
        """Its model was loaded."""
        self._scheduler.loaded(deployment, took_s)

    def _came(self, deployment: Deployment) -> None:
        self._scheduler.deployment_added(deployment, self._clock())

    def _gone(self, deployment: Deployment) -> None:
        self._scheduler.deployment_removed(deployment, self._clock())
