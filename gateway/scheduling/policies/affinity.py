"""Sessions: requests that belong together (``x-trunkline-session``, stateful engines), and where they go.

For a policy a session's name is a hint. Rendezvous hashing (Thaler and Ravishankar, 1996)
ranks all deployments for a session by a hash of both, so when one comes or goes only the sessions that rank
it first move. Bounded loads (Mirrokni, Thorup and Zadimoghaddam, 2018): one that has ``BOUND`` times its
share of what runs is passed over for the next in the ranking.

On an engine's own paths it is a condition: what one request leaves behind at its host, the next one asks
for; a ComfyUI tells only its own ``/history``. So all requests of a session go to one agent as long as that
agent serves the model (:class:`SessionAffinity`). The agent is chosen when the first of them comes, not when
a slot is free: two that come together must go to the same one.
"""

from collections import OrderedDict
from collections.abc import Collection
from functools import lru_cache
from hashlib import blake2b

from gateway.scheduling.base import DeploymentView

BOUND = 1.25
"""How much more than its share of the requests running a deployment may have."""

MOST_SESSIONS = 65_536
"""Sessions that are remembered; the one longest unused is forgotten first."""

_MASK = (1 << 64) - 1


def rendezvous_rank(session: str, key: str) -> int:
    """The deployment of the highest rank is the session's first choice. Equal in every process."""
    mixed = (_hash(session) ^ _hash(key)) * 0x9E3779B97F4A7C15 & _MASK
    mixed = (mixed ^ (mixed >> 29)) * 0xBF58476D1CE4E5B9 & _MASK
    return mixed ^ (mixed >> 32)


def fair_share(running: int, slots: int) -> float:
    """Requests that a deployment may have for each of its slots, when ``running`` run on ``slots`` in all."""
    return BOUND * running / slots if slots else 0.0


@lru_cache(maxsize=8192)
def _hash(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")


OWNERS_PART = 4
"""A tenant may have one in this many of all sessions. Otherwise it could displace those of all others."""


class SessionAffinity:
    """Belongs to one thread. A session is known by a text that names whose it is, too (:func:`pin_of`)."""

    def __init__(self, most: int = MOST_SESSIONS) -> None:
        self._most = most
        self._agents: OrderedDict[str, str] = OrderedDict()
        self._owned: dict[str, OrderedDict[str, None]] = {}
        """By owner, in the same order."""

    def __len__(self) -> int:
        return len(self._agents)

    def agent_of(self, pin: str) -> str | None:
        """The agent at which the session is; None when it is not known, or no longer."""
        agent = self._agents.get(pin)
        if agent is not None:
            self._use(pin, agent)
        return agent

    def choose(self, pin: str, views: Collection[DeploymentView]) -> str | None:
        """The session begins, or goes on elsewhere, at one of ``views``, which all suit it: where something
        is free, and then where least runs for each slot. None where there are none, and the session is
        forgotten."""
        if not views:
            self._forget(pin)
            return None
        best = max(
            views, key=lambda view: (view.free > 0, -_busy(view), rendezvous_rank(pin, view.key), view.key)
        )
        self._use(pin, best.agent)
        return best.agent

    def _use(self, pin: str, agent: str) -> None:
        """Note the latest use of ``pin``. If there are too many now, the one longest unused is forgotten."""
        own = self._owned.setdefault(_owner(pin), OrderedDict())
        self._agents[pin], own[pin] = agent, None
        self._agents.move_to_end(pin)
        own.move_to_end(pin)
        if len(own) > max(1, self._most // OWNERS_PART):
            self._forget(next(iter(own)))
        elif len(self._agents) > self._most:
            self._forget(next(iter(self._agents)))

    def _forget(self, pin: str) -> None:
        if self._agents.pop(pin, None) is not None:
            own = self._owned[_owner(pin)]
            del own[pin]
            if not own:
                del self._owned[_owner(pin)]


def pin_of(model: str, tenant: str, key_id: str, session: str | None) -> str:
    """What a session is known by. One that has a name is its tenant's, one that has none is its key's."""
    whose = f"tenant {tenant}\n{session}" if session is not None else f"key {key_id}\n"
    return f"{model}\n{whose}"


def _owner(pin: str) -> str:
    return pin.split("\n", 2)[1]


def _busy(view: DeploymentView) -> float:
    return view.in_flight / view.slots if view.slots else float("inf")
