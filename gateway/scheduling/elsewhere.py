"""What one agent says of the requests that it runs for other processes of the gateway, told to the scheduler
(PROTOCOL §4.11). Pure.

What an agent says is bounded here: by the requests that may run at once, and by what the prefix index keeps
of each deployment.
"""

from collections.abc import Callable

from gateway.scheduling.base import BLOCK_TOKENS, DeploymentView, PendingRequest
from gateway.scheduling.scheduler import Scheduler
from shared.protocol import limits
from shared.protocol.errors import UnexpectedFrame
from shared.protocol.others import OtherRequest, Others
from shared.protocol.routes import ANY_ROUTE

ViewOf = Callable[[str], DeploymentView | None]
"""The deployment of that id; None if there is none."""

_UNKNOWN = None, 0


class RequestsElsewhere:
    """Those of one session. It is dropped with its session; the deployments are gone then, and with them what
    is counted there."""

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        block_tokens: float = BLOCK_TOKENS,
        placed: Callable[[DeploymentView, int], None] = lambda view, tokens: None,
        ended: Callable[[DeploymentView, int], None] = lambda view, tokens: None,
    ) -> None:
        """``block_tokens`` is how many tokens a fingerprint stands for. ``placed`` and ``ended`` are called
        with the tokens of context that a request takes there besides what is cached; ``ended`` before the
        deployment's load no longer counts it."""
        self._scheduler = scheduler
        self._block_tokens = block_tokens
        self._placed = placed
        self._ended = ended
        self._running: dict[int, tuple[DeploymentView | None, int]] = {}
        """Number → where the request runs, None for a deployment that is not known; and its tokens."""

    def __len__(self) -> int:
        """Requests that run."""
        return len(self._running)

    def take(self, others: Others, view_of: ViewOf, now: float) -> set[str]:
        """Counts what has changed. Returns the models whose waiting requests may be placed now.

        Raises :class:`~shared.protocol.errors.UnexpectedFrame` for what the protocol does not allow.
        """
        changed: set[str] = set()
        for request in others.began:
            if request.number in self._running:
                raise UnexpectedFrame(f"OTHERS: request {request.number} began twice")
            if len(self._running) >= limits.OTHERS_RUNNING:
                raise UnexpectedFrame(f"OTHERS: more than {limits.OTHERS_RUNNING} requests run at once")
            view = view_of(request.deployment)
            self._running[request.number] = view, 0 if view is None else self._begin(request, view, now)
        for number in others.first:
            view, _ = self._running.get(number, _UNKNOWN)
            if view is not None and self._scheduler.first_token(_apart(number), view, now):
                changed.add(view.model)
        for number in others.ended:
            view, tokens = self._running.pop(number, _UNKNOWN)
            if view is not None:
                self._ended(view, tokens)
                if self._scheduler.finished_elsewhere(_apart(number), view, now):
                    changed.add(view.model)
        return changed

    def _begin(self, request: OtherRequest, view: DeploymentView, now: float) -> int:
        expected = request.expected
        item = PendingRequest(
            number=_apart(request.number),
            route=ANY_ROUTE,
            work=0.0,
            arrived_s=now - request.age_s,
            input_tokens=expected.input_tokens,
            output_tokens=expected.output_tokens,
            prefix=expected.fingerprints,
            block_tokens=self._block_tokens,
        )
        asked = self._scheduler.placed_elsewhere(item, view, now, read=request.read)
        tokens = asked.uncached_tokens + asked.output_tokens
        self._placed(view, tokens)
        return tokens


def _apart(number: int) -> int:
    """The agent's number as one that no request of this process has: theirs are not negative."""
    return -1 - number
