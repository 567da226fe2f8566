"""Unloads what an operator wants unloaded: it gets nothing new, ends what it runs, and goes.

Placement alone would unload it only for another model. Belongs to the event loop's thread.
"""

from collections.abc import Callable

import structlog

from gateway.dispatch.load_commands import LoadCommands
from gateway.fleet.deployment import Deployment
from gateway.fleet.model_index import ModelIndex
from gateway.scheduling.placement.data import LoadState
from shared.protocol.messages import CommandVerb

EVICTION_S = 300.0
"""A deployment whose requests have not ended after so long gets new ones again, and stays."""

WHY = "an operator wants it"

_log = structlog.get_logger(__name__)


class WantedEvictions:
    """Deployments that still run something. Each process of the gateway gives them nothing new; the one that
    has models loaded also sends the command."""

    def __init__(
        self, index: ModelIndex, loading: LoadCommands, running: Callable[[Deployment], int]
    ) -> None:
        """``running`` tells how many requests a deployment runs, of all processes."""
        self._index = index
        self._loading = loading
        self._running = running
        self.wanted: dict[str, tuple[Deployment, float]] = {}
        """By key, and until when they may take."""

    @property
    def due_s(self) -> float | None:
        """When to look at the latest; None: nothing is to be unloaded."""
        return min((until_s for _, until_s in self.wanted.values()), default=None)

    def begin(self, deployment: Deployment, now: float) -> None:
        """From now on it gets nothing new. One whose model is not loaded is left as it is."""
        if deployment.managed and self._loading.load_state(deployment) is LoadState.LOADED:
            self.wanted[deployment.key] = deployment, now + EVICTION_S
            self._close(deployment, closing=True)

    def look(self, now: float, *, commands: bool) -> None:
        """Unload what runs nothing any more, and give up what still does after ``EVICTION_S``. ``commands``:
        this process is the one that has models unloaded."""
        for key, (deployment, until_s) in list(self.wanted.items()):
            loaded = self._loading.load_state(deployment) is LoadState.LOADED
            if not deployment.listed or not loaded:
                del self.wanted[key]  # it went, or is about to
                self._close(deployment, closing=deployment.told_to_go)
            elif commands and self._running(deployment) == 0:
                del self.wanted[key]
                deployment.closing = False  # the command closes it
                self._loading.command(CommandVerb.UNLOAD, deployment, WHY)
            elif now >= until_s:
                del self.wanted[key]
                self._close(deployment, closing=False)
                _log.warning("model_eviction_given_up", deployment=key, running=self._running(deployment))

    def _close(self, deployment: Deployment, *, closing: bool) -> None:
        if deployment.closing != closing:
            deployment.closing = closing
            self._index.update(deployment)
