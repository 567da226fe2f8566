"""Which versions of models are served, as far as the index knows, and the alarm for agents that serve one
model in different versions while no alias tells these apart."""

from collections.abc import Callable, Mapping

import structlog

from gateway.domain.aliases import AliasTarget
from gateway.domain.request import Request
from gateway.domain.residency import Residency
from gateway.domain.slices import Stepwise, run_at_once
from gateway.domain.timers import Timers
from gateway.fleet.availability import Availability
from gateway.fleet.deployment import Deployment
from gateway.fleet.model_index import ModelIndex
from gateway.pipeline.aliases.cache import AliasCache
from gateway.scheduling.base import DeploymentConstraints

ABSENT_S = 0.1
"""So long it is taken for true that a version is not there, once somebody has looked everywhere."""

MOST = 1024
"""Answers that are remembered."""

_Question = tuple[str, str, str, Residency | None, str | None]


class ServedVersions:
    """Says whether targets are served. Of versions it remembers where it found one: in a large fleet a few
    deployments may be looked for among many. Belongs to one thread."""

    def __init__(self, index: ModelIndex, clock: Callable[[], float]) -> None:
        self.index = index
        self.clock = clock
        self._found: dict[_Question, Deployment | float] = {}
        """A deployment that served it, or until when there is none."""

    def __call__(self, target: AliasTarget, request: Request) -> bool:
        """Whether there is a deployment of ``target`` that may take a request of this kind, now, in a moment
        or once it is loaded."""
        version = target.version
        if version is None:
            availability = self.index.availability(target.model, request.need, request.where, request.agent)
            return availability is Availability.SERVED
        fit = DeploymentConstraints(request.need, version=version, where=request.where, agent=request.agent)
        question = target.model, version, request.need, request.where, request.agent
        known = self._found.get(question)
        if isinstance(known, Deployment):
            if self._is_known(known) and known.suits(fit):
                return True
        elif known is not None and self.clock() < known:
            return False
        found = next((each for each in deployments_of(self.index, target) if each.suits(fit)), None)
        if len(self._found) >= MOST:
            self._found.clear()
        self._found[question] = found if found is not None else self.clock() + ABSENT_S
        return found is not None

    def _is_known(self, deployment: Deployment) -> bool:
        record = self.index.models.get(deployment.model)
        return record is not None and any(
            known.get(deployment.key) is deployment for known in (record.serving, record.loadable)
        )


def deployments_of(index: ModelIndex, target: AliasTarget) -> list[Deployment]:
    """The deployments of ``target`` that serve it or would be loaded for it."""
    record = index.models.get(target.model)
    if record is None:
        return []
    version = target.version
    known = (*record.serving.values(), *record.loadable.values())
    return [each for each in known if version is None or each.version == version]


def versions_of(index: ModelIndex, model: str) -> set[str]:
    """The versions of ``model`` that are there; "" stands for deployments that say none."""
    return {deployment.version for deployment in deployments_of(index, AliasTarget(model))}


def just_gone(index: ModelIndex, model: str, now: float, grace_s: float) -> bool:
    """Whether some deployment of ``model`` went within the last ``grace_s``: it may be back at once."""
    record = index.models.get(model)
    return record is not None and now - record.left_s < grace_s


LOOK_S = 5.0
"""From a change of what is served to the search for skew: agents of a fleet come one after the other."""

VERSIONS_NAMED = 20
"""In a message or a line of the log."""

_log = structlog.get_logger(__name__)


class VersionSkewDetector:
    """Says once when a model's versions come to differ, or differ in another way, and once when it is over.
    Belongs to the event loop's thread."""

    def __init__(self, index: ModelIndex, aliases: AliasCache, timers: Timers) -> None:
        self._index = index
        self._aliases = aliases
        self._timers = timers
        self._scheduled = False
        self._reported: dict[str, frozenset[str]] = {}
        """By model, the versions that were logged; no more models than the index knows."""
        index.subscribe(self._changed)

    def figures(self) -> Stepwise[Mapping[str, int]]:
        """By model, how many versions more than one are served; models of one version are left out."""
        found = yield from self._search()
        return {model: len(versions) - 1 for model, versions in found.items()}

    def _changed(self, model: str) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._timers.call_at(self._timers.time() + LOOK_S, self._report)

    def _report(self) -> None:
        self._scheduled = False
        found = run_at_once(self._search())
        for model in self._reported.keys() - found.keys():
            _log.info("version_skew_over", model=model)
        for model, versions in found.items():
            if self._reported.get(model) != versions:
                named = sorted(versions)[:VERSIONS_NAMED]
                _log.warning("version_skew", model=model, versions=named, count=len(versions))
        self._reported = found

    def _search(self) -> Stepwise[dict[str, frozenset[str]]]:
        """Models that are served in several versions which no alias tells apart, and those versions; a model
        a step."""
        found = {}
        for model, record in list(self._index.models.items()):
            yield
            if len(record.serving) + len(record.loadable) < 2:
                continue
            versions = frozenset(versions_of(self._index, model))
            if len(versions) > 1 and model not in self._aliases.versioned:
                found[model] = versions
        return found
