"""What an operation is told."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class AdminRequest:
    """One operation that is asked for, by a command or over HTTP."""

    wall_s: float
    """Now, in seconds since 1970."""
    serves: Callable[[str, str | None], bool]
    """Whether somebody serves this model, in this version or, for None, in any."""
    names: tuple[str, ...] = ()
    """Those in the operation's path, in its order."""
    body: Mapping[str, Any] = field(default_factory=dict)
    """Members by name, each of its type; those that are not given stay as they are or have their default."""

    @property
    def name(self) -> str:
        """Of the record that is meant."""
        return self.names[0]
