"""The alarm for agents that serve one model in different versions while no alias tells these apart."""

from collections.abc import Mapping

import structlog

from gateway.domain.slices import Look, looked_at_once
from gateway.domain.timers import Timers
from gateway.fleet.model_index import ModelIndex
from gateway.pipeline.aliases.cache import AliasCache
from gateway.pipeline.aliases.served import versions_of

LOOK_S = 5.0
"""From a change of what is served to the look at it: agents of a fleet come one after the other."""

VERSIONS_TOLD = 20

_log = structlog.get_logger(__name__)


class SkewAlarm:
    """Says once when a model's versions come to differ, or differ in another way, and once when it is over.
    Belongs to the event loop's thread."""

    def __init__(self, index: ModelIndex, book: AliasCache, timers: Timers) -> None:
        self._index = index
        self._book = book
        self._timers = timers
        self._due = False
        self._told: dict[str, frozenset[str]] = {}
        """By model, the versions that were told; no more models than the index knows."""
        index.subscribe(self._changed)

    def figures(self) -> Look[Mapping[str, int]]:
        """By model, how many versions more than one are served; models of one version are left out."""
        found = yield from self._look()
        return {model: len(versions) - 1 for model, versions in found.items()}

    def _changed(self, model: str) -> None:
        if not self._due:
            self._due = True
            self._timers.call_at(self._timers.time() + LOOK_S, self._tell)

    def _tell(self) -> None:
        self._due = False
        found = looked_at_once(self._look())
        for model in self._told.keys() - found.keys():
            _log.info("version_skew_over", model=model)
        for model, versions in found.items():
            if self._told.get(model) != versions:
                told = sorted(versions)[:VERSIONS_TOLD]
                _log.warning("version_skew", model=model, versions=told, count=len(versions))
        self._told = found

    def _look(self) -> Look[dict[str, frozenset[str]]]:
        """Models that are served in several versions which no alias tells apart, and those versions; a model
        a step."""
        found = {}
        for model, record in list(self._index.models.items()):
            yield
            if len(record.serving) + len(record.loadable) < 2:
                continue
            versions = frozenset(versions_of(self._index, model))
            if len(versions) > 1 and not self._book.tells_apart(model):
                found[model] = versions
        return found
