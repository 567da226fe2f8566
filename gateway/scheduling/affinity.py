"""At which agent each session is, for requests that belong together (``x-trunkline-session``, stateful
engines).

What one request for an engine's own paths leaves behind at its host, the next one asks for: a ComfyUI tells
only its own ``/history``. So all requests of a session go to one agent as long as that agent serves the
model. Which one it is, is decided when the first of them comes, not when a slot is free: two that come
together must not part."""

from collections import OrderedDict
from collections.abc import Collection

from gateway.scheduling.base import DeploymentView
from gateway.scheduling.homes import rank

MOST_SESSIONS = 65_536
"""Sessions that are remembered; the one longest unused is forgotten first."""


class Affinity:
    """Belongs to one thread. A session is known by a text that names whose it is, too (:func:`pin_of`)."""

    def __init__(self, most: int = MOST_SESSIONS) -> None:
        self._most = most
        self._agents: OrderedDict[str, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._agents)

    def of(self, pin: str) -> str | None:
        """The agent at which the session is; None when it is not known, or no longer."""
        agent = self._agents.get(pin)
        if agent is not None:
            self._agents.move_to_end(pin)
        return agent

    def choose(self, pin: str, views: Collection[DeploymentView]) -> str | None:
        """The session begins, or goes on elsewhere, at one of ``views``, which all suit it: where something
        is free, and then where least runs for each slot. None where there are none, and the session is
        forgotten."""
        if not views:
            self._agents.pop(pin, None)
            return None
        best = max(views, key=lambda view: (view.free > 0, -_busy(view), rank(pin, view.key), view.key))
        self._agents[pin] = best.agent
        self._agents.move_to_end(pin)
        if len(self._agents) > self._most:
            self._agents.popitem(last=False)
        return best.agent


def pin_of(model: str, tenant: str, key_id: str, session: str | None) -> str:
    """What a session is known by. One that has a name is its tenant's, one that has none is its key's."""
    whose = f"tenant\n{tenant}\n{session}" if session is not None else f"key\n{key_id}"
    return f"{model}\n{whose}"


def _busy(view: DeploymentView) -> float:
    return view.in_flight / view.slots if view.slots else float("inf")
