"""Which agents are connected, what they serve and how many slots they grant.

Everything belongs to the event loop's thread. Models once served are remembered in memory only: after a
restart a model is unknown (404) until an agent that serves it has connected, which takes agents about a second.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model for ``GET /v1/models``."""

    id: str
    created_s: int
    """Unix time at which a deployment of it was first seen by this gateway."""
    owned_by: str
    ready: bool
    """A deployment of it is loaded and takes requests now."""
    deployments: int
    """Deployments that take requests now."""
    routes: tuple[str, ...]
    """What those can do, sorted; empty when there are none."""


class Registry:
    """Connected agents and their deployments."""

    def models(self) -> list[ModelInfo]:
        """Every model that was ever served and is allowed, by name; those not served now have ``ready`` False."""
        raise NotImplementedError

    def model(self, name: str) -> ModelInfo | None:
        """One model, None when nothing ever served it."""
        raise NotImplementedError

    @property
    def agents_connected(self) -> int:
        raise NotImplementedError
