"""What a check of ``trunkline doctor`` is, and what it finds.

Packages register their checks with :meth:`shared.process.cli.RootGroup.checks`, so the command knows of an
agent's checks without importing the agent.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # the help of commands needs no settings
    from shared.process.shown_settings import ShownSetting

LIMIT_S = 15.0
"""How long a check may take unless it says otherwise."""


class CheckState(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARNING = "warning"
    """It works, and may not for long or not for everybody."""
    FAILED = "failed"
    SKIPPED = "skipped"
    """It could not be looked at, or has no meaning here. The words say why."""


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """What a check found."""

    state: CheckState
    words: str
    """One plain sentence."""
    remedy: str = ""
    """What to do; may have several lines, such as those of a proxy's configuration."""
    facts: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """For programs: what JSON can hold."""


def passed(words: str, **facts: Any) -> CheckOutcome:
    """All is well."""
    return CheckOutcome(CheckState.OK, words, facts=facts)


def warned(words: str, remedy: str, **facts: Any) -> CheckOutcome:
    """It works, and may not for long."""
    return CheckOutcome(CheckState.WARNING, words, remedy, facts)


def failed(words: str, remedy: str, **facts: Any) -> CheckOutcome:
    """It does not work."""
    return CheckOutcome(CheckState.FAILED, words, remedy, facts)


def skipped(reason: str) -> CheckOutcome:
    """Nothing was looked at."""
    return CheckOutcome(CheckState.SKIPPED, reason)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing to look at."""

    id: str
    """Stays the same from version to version: runbooks and scripts name it."""
    run: Callable[[], CheckOutcome]
    """Called in a thread. Changes nothing. What it raises is a defect, and shown as a failure."""
    after: Sequence[str] = ()
    """Ids of checks without which this one has no meaning: it is skipped where one of them failed or was
    skipped."""
    limit_s: float = LIMIT_S


@dataclass(frozen=True, slots=True)
class CheckedHost:
    """What the checks of a host are to look at. None: what the program there takes without further
    options."""

    config: Path | None = None
    """The program's file of settings."""
    state: Path | None = None
    """Its state directory."""
    engines: Sequence[str] = ()
    """URLs of engines, in place of those that the settings name."""
    wanted: bool = False
    """The caller has asked for this host's checks, so that nothing is there is a failure too."""
    agents: Callable[[], Sequence[Mapping[str, Any]]] | None = None
    """Gives the agents that the gateway knows, as ``GET /admin/agents`` does; None: it cannot be asked.
    Raises LookupError with the reason."""


class HostChecks(Protocol):
    """A module that a package registers with :meth:`shared.process.cli.RootGroup.checks`."""

    def is_here(self, host: CheckedHost) -> bool:
        """Whether the package's program is used on this host."""

    def checks(self, host: CheckedHost) -> Sequence[Check]:
        """What is to be looked at."""

    def gateway_url(self, host: CheckedHost) -> str | None:
        """Where the program's gateway is, as far as its settings say."""

    def gateway_ca_file(self, host: CheckedHost) -> Path | None:
        """Certificates that it trusts for that gateway's TLS; None: the system's."""

    def settings_shown(self, host: CheckedHost) -> "Sequence[ShownSetting]":
        """The program's effective settings. Raises ConfigError."""
