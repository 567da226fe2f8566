"""Rules on errors that clients saw: was each one allowed? (docs/testing.md has the rule in words.)"""

from dataclasses import dataclass
from enum import StrEnum

import gateway.domain.errors
from tests.chaos.asks import Ask
from tests.chaos.checks import Failure
from tests.chaos.journal import Journal
from tests.chaos.schedule import SILENT_KINDS, WORKER_KINDS, Kind

_RESTART_CODES = frozenset({"shutting_down", "no_deployment", "overloaded_error"})
"""The last is what Anthropic's shape says for both."""
_ANTHROPIC_TYPES = frozenset(
    {"rate_limit_error", "overloaded_error", "timeout_error", "api_error", "not_found_error"}
)
_CONNECTION = "connection"
_ENGINES_OWN = "scripted_"
"""Codes of the engines' own answers, which are passed on once engine after engine failed on a request."""


LATE_S = 45.0
"""So much later than undisturbed an answer may come that can move: the time until an engine without a sign of
life is found out, and some time for what happens besides, and for slow machines."""


class Ruling(StrEnum):
    """Why an error was allowed, or that it was not."""

    GATEWAY_RESTART = "gateway restarts"
    NOBODY_ELSE = "no healthy deployment"
    NOT_CONTINUABLE = "cannot be continued"
    MOVABLE = "ERROR THOUGH MOVABLE"
    LATE = "LATE THOUGH MOVABLE"
    """No error: the answer came, much later than one that moves."""
    UNDOCUMENTED = "UNDOCUMENTED ERROR"

    @property
    def allowed(self) -> bool:
        return self not in (Ruling.MOVABLE, Ruling.LATE, Ruling.UNDOCUMENTED)


def documented_codes() -> frozenset[str]:
    """The codes of the tree of ``gateway.domain.errors``, and the types that stand for them in
    Anthropic's shape.
    """
    kinds = [gateway.domain.errors.RequestError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    return frozenset(kind.code for kind in kinds) | {"stream_not_continuable"} | _ANTHROPIC_TYPES


@dataclass(frozen=True, slots=True)
class Oracle:
    """Knows what happened, and so what was possible."""

    journal: Journal

    def rule(self, ask: Ask, failure: Failure, from_s: float, until_s: float) -> Ruling:
        """On an error of a request that lived from ``from_s`` to ``until_s``."""
        restarts = self.journal.gateway_restarts(from_s, until_s)
        if failure.where == _CONNECTION:
            return Ruling.GATEWAY_RESTART if restarts else Ruling.UNDOCUMENTED
        if failure.code not in documented_codes() and not failure.code.startswith(_ENGINES_OWN):
            return Ruling.UNDOCUMENTED
        if restarts and failure.code in _RESTART_CODES:
            return Ruling.GATEWAY_RESTART
        if not self.journal.somebody_was_there_throughout(ask.model, ask.route, from_s, until_s):
            return Ruling.NOBODY_ELSE
        if not ask.continuable and failure.where == "frame" and self._worker_trouble(ask, from_s, until_s):
            return Ruling.NOT_CONTINUABLE
        return Ruling.MOVABLE

    def is_late(self, ask: Ask, from_s: float, until_s: float) -> bool:
        """Whether a whole answer came later than it may: somebody else could have given it all the time."""
        return (
            ask.continuable
            and not ask.recorded
            and until_s - from_s > ask.lasts_s + LATE_S
            and not self.journal.gateway_restarts(from_s, until_s)
            and self.journal.somebody_was_there_throughout(ask.model, ask.route, from_s, until_s)
        )

    def _worker_trouble(self, ask: Ask, from_s: float, until_s: float) -> bool:
        kinds = (*WORKER_KINDS, *SILENT_KINDS, Kind.BLACKOUT)
        touching = self.journal.touching(ask.model, from_s, until_s)
        return any(entry.fault.kind in kinds for entry in touching)
