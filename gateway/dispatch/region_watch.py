"""Follows which regions are there, and which are lost or coming back: looks at the fleet after each change of
it, and when the time of a region's standing is over.

What decides is pure (:mod:`gateway.scheduling.regions.standing`). Belongs to the event loop's thread.
"""

from collections import Counter as Tally
from collections.abc import Callable

import structlog

from gateway.domain.timers import Timers
from gateway.fleet.deployment import Deployment
from gateway.fleet.registry import Registry
from gateway.scheduling.base import DeploymentView
from gateway.scheduling.regions.settings import RegionSettings
from gateway.scheduling.regions.standing import RegionStanding, Standing
from shared.process.timers import Cancellable

LOOK_S = 0.05
"""Regions are looked at again so soon after something of the fleet has changed."""

MOST_REGIONS = 1000
"""That are followed; those beyond are there when they are there."""

_log = structlog.get_logger(__name__)


class RegionWatch:
    """The regions of a registry's deployments, and how each stands."""

    def __init__(
        self, settings: RegionSettings, registry: Registry, timers: Timers, time_passed: Callable[[], None]
    ) -> None:
        """``time_passed`` is called when a standing was due, which nothing of the fleet tells."""
        self.settings = settings
        self.standings: dict[str, RegionStanding] = {}
        self.away: frozenset[str] = frozenset()
        """Regions that are lost, or have just gone."""
        self.failovers = Tally[str]()
        """How often each region was lost."""
        self._registry = registry
        self._timers = timers
        self._time_passed = time_passed
        self._look: Cancellable | None = None
        self._due: Cancellable | None = None
        registry.index.subscribe(self._changed)

    def retune(self, settings: RegionSettings) -> None:
        """The times from now on."""
        self.settings = settings
        for standing in self.standings.values():
            standing.settings = settings

    def close(self) -> None:
        """Looks no more."""
        for timer in (self._look, self._due):
            if timer is not None:
                timer.cancel()
        self._look = self._due = None

    def region_of(self, view: DeploymentView) -> str:
        """Its region. One without the label is at home, unless its agent is a gateway: that may be anywhere,
        and has the region without a name."""
        region = view.labels.get(self.settings.label)
        if region is not None:
            return region
        return "" if isinstance(view, Deployment) and view.asked_as else self.settings.home

    def _changed(self, _model: str) -> None:
        if self._look is None:
            self._look = self._timers.call_at(self._timers.time() + LOOK_S, self._take_look)

    def _take_look(self) -> None:
        self._look = None
        now, there = self._timers.time(), set[str]()
        for session in self._registry.sessions:
            if session.suspended:
                continue
            for each in session.deployments.values():
                if (each.promising and not each.shut) or each.loadable:
                    there.add(self.region_of(each))
        for region in there.difference(self.standings):
            if len(self.standings) < MOST_REGIONS:
                self.standings[region] = RegionStanding(self.settings, now)
        for region, standing in self.standings.items():
            before = standing.standing
            standing.advance(now)
            if standing.found(now) if region in there else standing.lost(now):
                standing.advance(now)
            if standing.standing is not before:
                self._tell(region, standing)
        self.away = frozenset(
            region
            for region, each in self.standings.items()
            if each.standing in (Standing.BLIP, Standing.DOWN)
        )
        self._wait()

    def _wait(self) -> None:
        """Look again when a standing is due."""
        if self._due is not None:
            self._due.cancel()
        times = [each.until_s for each in self.standings.values() if each.until_s is not None]
        due_s = min(times, default=None)
        self._due = None if due_s is None else self._timers.call_at(due_s, self._standing_due)

    def _standing_due(self) -> None:
        self._due = None
        if self._look is not None:
            self._look.cancel()
        self._take_look()
        self._time_passed()

    def _tell(self, region: str, standing: RegionStanding) -> None:
        now_is = standing.standing
        if now_is is Standing.DOWN:
            self.failovers[region] += 1
            _log.warning("region_lost", region=region, failures=standing.failures)
        elif now_is is Standing.HELD:
            _log.info("region_held", region=region, hold_s=standing.hold_s, failures=standing.failures)
        elif now_is is Standing.RETURNING:
            _log.info("region_returning", region=region, ramp_s=self.settings.ramp_s)
        elif now_is is Standing.UP:
            _log.info("region_up", region=region)
