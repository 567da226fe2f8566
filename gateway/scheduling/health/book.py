"""Health by deployment key, kept over reconnects: a flapping agent does not come back innocent."""

from gateway.scheduling.health.record import DeploymentHealth, HealthSettings

FORGET_S = 300.0
"""A deployment that was away for longer is new."""

MOST_GONE = 4096
"""Deployments remembered that are not there; those longest gone are forgotten first."""


class HealthBook:
    """Of all deployments that are there, and for some minutes of those that left."""

    def __init__(self, settings: HealthSettings) -> None:
        self._settings = settings
        self._present: dict[str, DeploymentHealth] = {}
        self._gone: dict[str, tuple[float, DeploymentHealth]] = {}
        """In the order they left."""

    def __len__(self) -> int:
        return len(self._present) + len(self._gone)

    def arrived(self, key: str, now: float) -> tuple[DeploymentHealth, bool]:
        """The health of a deployment that is there from now on, and whether it is new."""
        present = self._present.get(key)
        if present is not None:
            return present, False
        self._forget(now)
        _, health = self._gone.pop(key, (0.0, None))
        new = health is None
        health = self._present[key] = health or DeploymentHealth(self._settings, now)
        return health, new

    def departed(self, key: str, now: float) -> None:
        """The deployment is not there any more."""
        health = self._present.pop(key, None)
        if health is not None:
            self._gone[key] = now, health
            self._forget(now)

    def _forget(self, now: float) -> None:
        while self._gone:
            key, (gone_s, _) = next(iter(self._gone.items()))
            if now - gone_s < FORGET_S and len(self._gone) <= MOST_GONE:
                return
            del self._gone[key]
