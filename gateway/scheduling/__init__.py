"""Which request goes where: pure decisions (SCHEDULING). Policies by their names."""

from collections.abc import Callable, Mapping

from gateway.scheduling.base import Policy
from gateway.scheduling.least_outstanding import LeastOutstanding

POLICIES: Mapping[str, Callable[[], Policy]] = {LeastOutstanding.name: LeastOutstanding}


def policy_named(name: str) -> Policy:
    """A fresh policy. Raises ValueError, saying which names there are."""
    try:
        return POLICIES[name]()
    except KeyError:
        raise ValueError(f"no scheduling policy {name!r}; there are: {', '.join(sorted(POLICIES))}") from None
