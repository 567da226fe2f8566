"""Where sessions are at home: rendezvous hashing with bounded loads, and where each was last (SCHEDULING §4).

Rendezvous hashing (Thaler and Ravishankar, 1996) ranks all deployments for a session by a hash of both,
so when one comes or goes only the sessions that rank it first move. Bounded loads (Mirrokni, Thorup and
Zadimoghaddam, 2018): one that has ``BOUND`` times its share of what runs is passed over for the next in
the ranking.
"""

from collections import OrderedDict
from functools import lru_cache
from hashlib import blake2b

BOUND = 1.25
"""How much more than its share of the requests running a deployment may have."""

MOST_SESSIONS = 65_536
_MASK = (1 << 64) - 1


class Homes:
    """Where each of the ``MOST_SESSIONS`` latest sessions was last."""

    def __init__(self, most: int = MOST_SESSIONS) -> None:
        self._most = most
        self._homes: OrderedDict[str, str] = OrderedDict()

    def of(self, session: str) -> str | None:
        return self._homes.get(session)

    def moved(self, session: str, key: str) -> None:
        """A request of ``session`` went to the deployment ``key``."""
        self._homes[session] = key
        self._homes.move_to_end(session)
        if len(self._homes) > self._most:
            self._homes.popitem(last=False)


def rank(session: str, key: str) -> int:
    """The deployment of the highest rank is the session's first choice. Equal in every process."""
    mixed = (_hash(session) ^ _hash(key)) * 0x9E3779B97F4A7C15 & _MASK
    mixed = (mixed ^ (mixed >> 29)) * 0xBF58476D1CE4E5B9 & _MASK
    return mixed ^ (mixed >> 32)


def fair_share(running: int, slots: int) -> float:
    """Requests that a deployment may have for each of its slots, when so many run on so many in all."""
    return BOUND * running / slots if slots else 0.0


@lru_cache(maxsize=8192)
def _hash(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")
