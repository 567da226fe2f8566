"""Who decides in a simulated gateway: the gateway's own scheduler, or a rival that keeps its own books."""

from collections.abc import Sequence
from typing import Protocol

from gateway.scheduling.base import Assignment, DeploymentView, Outcome, Policy, Waiting
from gateway.scheduling.scheduler import Scheduler


class Decider(Protocol):
    """What :class:`~gateway.simulate.world.World` asks and tells; see
    :class:`~gateway.scheduling.scheduler.Scheduler`."""

    watches_first_tokens: bool

    def came(self, view: DeploymentView, now: float) -> None: ...
    def gone(self, view: DeploymentView, now: float) -> None: ...
    def loaded(self, view: DeploymentView, load_s: float) -> None: ...
    def assign(
        self, waiting: Sequence[Waiting], deployments: Sequence[DeploymentView], now: float
    ) -> list[Assignment]: ...
    def look_again_s(self) -> float | None: ...
    def rests(self, now: float) -> bool: ...
    def placed(self, item: Waiting, view: DeploymentView, now: float) -> None: ...
    def first_token(self, number: int, view: DeploymentView, now: float) -> bool: ...
    def finished(self, item: Waiting, view: DeploymentView, outcome: Outcome, now: float) -> None: ...


class Ours:
    """The scheduler as the gateway runs it, for one model."""

    watches_first_tokens = True

    def __init__(self, policy: str, model: str, seed: int) -> None:
        self._scheduler = Scheduler(policy, seed=seed)
        self._model = model

    def came(self, view: DeploymentView, now: float) -> None:
        self._scheduler.came(view, now)

    def gone(self, view: DeploymentView, now: float) -> None:
        self._scheduler.gone(view, now)

    def loaded(self, view: DeploymentView, load_s: float) -> None:
        self._scheduler.loaded(view, load_s)

    def assign(
        self, waiting: Sequence[Waiting], deployments: Sequence[DeploymentView], now: float
    ) -> list[Assignment]:
        return self._scheduler.assign(self._model, waiting, deployments, now)

    def look_again_s(self) -> float | None:
        return self._scheduler.look_again_s(self._model)

    def rests(self, now: float) -> bool:
        return self._scheduler.rests(self._model, now)

    def placed(self, item: Waiting, view: DeploymentView, now: float) -> None:
        self._scheduler.placed(item, view, now)

    def first_token(self, number: int, view: DeploymentView, now: float) -> bool:
        return self._scheduler.first_token(number, view, now)

    def finished(self, item: Waiting, view: DeploymentView, outcome: Outcome, now: float) -> None:
        self._scheduler.finished(item.number, view, outcome, now)


class Rival:
    """A policy without the gateway's knowledge: it has its hooks, and what it can see by itself."""

    watches_first_tokens = False

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def came(self, view: DeploymentView, now: float) -> None:
        self._policy.came(view, now)

    def gone(self, view: DeploymentView, now: float) -> None:
        self._policy.gone(view.key, now)

    def loaded(self, view: DeploymentView, load_s: float) -> None:
        """Nobody tells it."""

    def assign(
        self, waiting: Sequence[Waiting], deployments: Sequence[DeploymentView], now: float
    ) -> list[Assignment]:
        return self._policy.assign(waiting, deployments, now)

    def look_again_s(self) -> float | None:
        return self._policy.look_again_s

    def rests(self, now: float) -> bool:
        return False

    def placed(self, item: Waiting, view: DeploymentView, now: float) -> None:
        self._policy.placed(item, view.key, now)

    def first_token(self, number: int, view: DeploymentView, now: float) -> bool:
        """Nobody tells it."""
        return False

    def finished(self, item: Waiting, view: DeploymentView, outcome: Outcome, now: float) -> None:
        self._policy.finished(item, view.key, outcome, now)
