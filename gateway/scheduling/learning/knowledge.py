"""What is known of one model while it is served: what policies choose by."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from gateway.scheduling.base import DeploymentView, PendingRequest
from gateway.scheduling.learning.performance import Performance, Speeds
from gateway.scheduling.learning.prefix import PrefixIndex


@dataclass(slots=True, eq=False)
class Knowledge:
    """Kept by :class:`~gateway.scheduling.scheduler.Scheduler`; policies only read it.

    ``views`` are the deployments that came and are not gone, full or not, by key. ``seed`` is what a policy
    draws its random numbers from.
    """

    model: str = ""
    performance: Performance = field(default_factory=Performance)
    prefixes: PrefixIndex = field(default_factory=PrefixIndex)
    views: dict[str, DeploymentView] = field(default_factory=dict)
    seed: int = 0
    shared: bool = False
    """Other processes give requests to the same deployments."""
    _kv_tokens: dict[str, int] = field(default_factory=dict)
    """The most room for context that each deployment has said it has."""
    by_device: dict[str, Speeds] = field(default_factory=dict)
    """What :meth:`speeds` has said, by device."""
    _listed: list[DeploymentView] | None = None
    """``views``, where they are many."""

    def some_views(self, number: int, most: int) -> Iterable[DeploymentView]:
        """All views where they are no more than ``most``, else about so many, evenly spread, others for
        another ``number`` of a request."""
        if len(self.views) <= most:
            return self.views.values()
        if self._listed is None:
            self._listed = list(self.views.values())
        step = len(self._listed) // most
        return islice(self._listed, number % step, None, step)

    def add(self, view: DeploymentView) -> None:
        """A deployment is there."""
        self.views[view.key] = view
        self._listed = None

    def remove(self, view: DeploymentView) -> None:
        """A deployment is no more, and what it had read is lost."""
        del self.views[view.key]
        self._listed = None
        self.forget(view.key)

    def speeds(self, view: DeploymentView) -> Speeds:
        """How fast the model is on what ``view`` runs on."""
        found = self.by_device.get(view.device)
        if found is None:
            if len(self.by_device) >= 256:
                self.by_device.clear()
            found = self.by_device[view.device] = self.performance.speeds(self.model, view.device)
        return found

    def note_room(self, view: DeploymentView) -> None:
        """Look how much context the deployment says that it has room for."""
        free = view.kv_free_tokens
        if free is not None and free > self._kv_tokens.get(view.key, 0):
            self._kv_tokens[view.key] = free

    def capacity_blocks(self, item: PendingRequest, view: DeploymentView) -> int | None:
        """How many blocks like those of ``item`` the deployment can keep; None if it does not say."""
        most = self._kv_tokens.get(view.key)
        return None if most is None or item.block_tokens <= 0 else int(most / item.block_tokens)

    def could_hold(self, item: PendingRequest, view: DeploymentView) -> bool:
        """Whether the deployment ever had room for the context of ``item``."""
        return self._kv_tokens.get(view.key, 0) >= item.input_tokens + item.output_tokens

    def too_large(self, item: PendingRequest, view: DeploymentView) -> bool:
        """Whether the deployment never had room for as much, as far as is known."""
        most = self._kv_tokens.get(view.key)
        return most is not None and most < item.input_tokens + item.output_tokens

    def forget(self, key: str) -> None:
        """The deployment ``key`` is no more, or has loaded its model anew: what it had read is lost."""
        self.prefixes.forget(key)
        self._kv_tokens.pop(key, None)

    def readers(self, item: PendingRequest, most: int) -> dict[str, int]:
        """Deployments believed to have read some of the prompt, those that read most of it first, and how
        many of its tokens."""
        known: dict[str, int] = {}
        for blocks, keys in self.prefixes.longest_matches(item.prefix):
            tokens = cached(item, blocks)
            for key in islice(keys, most):
                known.setdefault(key, tokens)
            if len(known) >= most:
                break
        return known

    def cached_tokens(self, item: PendingRequest, key: str) -> int:
        """How many of the prompt's tokens the deployment ``key`` is believed to have read before."""
        matched = self.prefixes.matched_blocks(key, item.prefix) if item.prefix else 0
        return cached(item, matched)


def cached(item: PendingRequest, blocks: int) -> int:
    """The tokens in the first ``blocks`` of the prompt; at least one is always left to be read."""
    return min(int(blocks * item.block_tokens), max(0, item.input_tokens - 1))
