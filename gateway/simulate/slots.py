"""Which simulated deployments have a slot free, kept at every change."""

from collections.abc import Sequence

from gateway.scheduling.base import DeploymentView
from gateway.simulate.site import Site
from gateway.simulate.traffic import Job


class OpenSlots:
    """``free`` is of all deployments together."""

    def __init__(self, sites: Sequence[Site]) -> None:
        self.free = 0
        self._sites = {site.view.key: site for site in sites}
        self._open: dict[str, DeploymentView] = {}
        self._listed: list[DeploymentView] | None = None
        capacities = [site.engine.memory.capacity_tokens for site in sites]
        self._least_kv, self._most_kv = min(capacities), max(capacities)

    def note(self, site: Site) -> bool:
        """What ``site`` takes may have changed. True when it takes more than before."""
        view, before = site.view, site.counted_free
        free = site.counted_free = site.view.free
        self.free += free - before
        if (free > 0) != (before > 0):
            self._listed = None
            if free:
                self._open[view.key] = view
            else:
                del self._open[view.key]
        return free > before

    def fits_somewhere(self, job: Job) -> bool:
        return job.input_tokens + job.output_tokens <= self._most_kv

    def large(self, job: Job) -> bool:
        """Whether there are deployments that it does not fit."""
        return job.input_tokens + job.output_tokens > self._least_kv

    def views(self, job: Job) -> list[DeploymentView]:
        """Those with a slot free that ``job`` fits; not to be changed."""
        if self._listed is None:
            self._listed = list(self._open.values())
        if not self.large(job):
            return self._listed
        return [view for view in self._listed if self._sites[view.key].engine.fits(job)]
