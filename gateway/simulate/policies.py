"""Policies by name, for the simulator: those of the gateway, and what others do.

The gateway binds late: a request waits until a slot is free. Balancers that know of no slots push each
request at once, and it waits in the engine it was pushed to. So a name of :data:`PUSHED` is simulated as it
works elsewhere; with ``@queue`` behind it (``round-robin@queue``) it decides in this gateway, with its
queue.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gateway.scheduling import POLICIES
from gateway.scheduling.base import Policy
from gateway.simulate.clairvoyant import Clairvoyant
from gateway.simulate.deciders import Decider, Ours, Rival
from gateway.simulate.errors import BadSpec
from gateway.simulate.rivals import CacheAware, Chwbl, LeastLoad, LoadAwarePrefix
from gateway.simulate.site import Site

QUEUED = "@queue"

CLASSICS = frozenset(("round-robin", "least-connections", "power-of-two", "random"))
"""Of the gateway's, those that everybody has."""

RIVALS: Mapping[str, Callable[[Sequence[Site]], Policy]] = {
    LeastLoad.name: LeastLoad,
    CacheAware.name: CacheAware,
    LoadAwarePrefix.name: LoadAwarePrefix,
    Chwbl.name: Chwbl,
    Clairvoyant.name: Clairvoyant,
}
PUSHED = CLASSICS | RIVALS.keys() - {Clairvoyant.name}


@dataclass(frozen=True, slots=True)
class Choice:
    """A policy as it is to be simulated. ``late`` ones decide when a slot is free, the others at once."""

    name: str
    policy: str
    late: bool

    @property
    def knows_outputs(self) -> bool:
        return self.policy == Clairvoyant.name

    def decider(self, sites: Sequence[Site], model: str, seed: int) -> Decider:
        """A fresh one."""
        make = RIVALS.get(self.policy)
        return Ours(self.policy, model, seed) if make is None else Rival(make(sites))


def names() -> list[str]:
    """All there are."""
    return sorted({*POLICIES, *RIVALS})


def choices(text: str) -> list[Choice]:
    """Of names joined by commas; ``all`` is every one. Raises BadSpec."""
    wanted = names() if text.strip() == "all" else [name.strip() for name in text.split(",")]
    found = [_choice(name) for name in dict.fromkeys(wanted)]
    return found


def _choice(name: str) -> Choice:
    policy = name.removesuffix(QUEUED)
    if policy not in POLICIES and policy not in RIVALS:
        raise BadSpec("--policy", f"no policy is called {policy!r}; there are: {', '.join(names())}")
    return Choice(name, policy, late=policy not in PUSHED or name != policy)
