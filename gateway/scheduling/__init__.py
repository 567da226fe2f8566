"""Which request goes where: pure decisions, and the policies by their names
(`docs/scheduling.md`, *Policies*)."""

from collections.abc import Callable, Mapping

from gateway.scheduling.base import Policy
from gateway.scheduling.learning.knowledge import Knowledge
from gateway.scheduling.policies.cost import Cost
from gateway.scheduling.policies.least_outstanding import LeastOutstanding
from gateway.scheduling.policies.simple import (
    LeastConnections,
    PowerOfTwo,
    Prefix,
    Random,
    ResponseTime,
    RoundRobin,
    SessionHashing,
    SimplePolicy,
    Weighted,
)

_SIMPLE: tuple[type[SimplePolicy], ...] = (
    LeastConnections,
    RoundRobin,
    Weighted,
    PowerOfTwo,
    ResponseTime,
    Prefix,
    SessionHashing,
    Random,
)

POLICIES: Mapping[str, Callable[[Knowledge], Policy]] = {
    Cost.name: Cost,
    LeastOutstanding.name: lambda _: LeastOutstanding(),
    **{policy.name: policy for policy in _SIMPLE},
}


def policy_named(name: str, knowledge: Knowledge | None = None) -> Policy:
    """A fresh policy for the model that ``knowledge`` is of; without it one that knows nothing and
    learns only from its hooks. Raises ValueError, saying which names there are."""
    try:
        make = POLICIES[name]
    except KeyError:
        raise ValueError(f"no scheduling policy {name!r}; there are: {', '.join(sorted(POLICIES))}") from None
    return make(knowledge if knowledge is not None else Knowledge())
