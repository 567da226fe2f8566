"""The aliases in memory, as fresh as the store, and which of an alias's targets a request goes to.

A target is chosen by weighted rendezvous hashing. Each target draws a number from a hash of
the request's key and of itself, the smaller the larger its weight, and the smallest wins (an exponential
race: the logarithmic method of Schindelhauer and Schomaker, "Weighted Distributed Hash Tables", SPAA 2005).
So each gets its share of the keys; a key stays where it is while weights change, unless its target got less
or another one more; and when a target goes only its own keys move, each to its next choice.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import blake2b
from math import log

import structlog

from gateway.domain.aliases import Alias, AliasTarget
from gateway.storage import AliasRecord, AliasStore

_MASK = (1 << 64) - 1
_UNIT = 2.0**-53


class TargetChoice:
    """The targets of one alias, ready to be ranked."""

    __slots__ = ("_only", "_runners", "alias")

    def __init__(self, alias: Alias) -> None:
        self.alias = alias
        weighted = [target for target in alias.stands_for if target.weight > 0]
        self._runners = [(_hash(str(target)), target) for target in weighted]
        self._only = weighted if len(weighted) == 1 else None

    def ranked(self, key: str) -> Sequence[AliasTarget]:
        """The targets that have a weight, the one for ``key`` first, then where it goes when that is gone.
        Equal in every process."""
        if self._only is not None:
            return self._only
        mixed = _hash(key)
        race = [(-log(_unit(mixed ^ own)) / target.weight, own, target) for own, target in self._runners]
        race.sort(key=_pace)
        return [target for _, _, target in race]


def _pace(runner: tuple[float, int, AliasTarget]) -> tuple[float, int]:
    return runner[:2]


def lot(key: str, purpose: str) -> float:
    """A number over 0 and under 1 for ``key``, evenly spread; of another ``purpose`` another one."""
    return _unit(_hash(key) ^ _hash(purpose))


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def _unit(mixed: int) -> float:
    """Over 0 and under 1; splitmix64's finaliser makes near inputs unlike."""
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB & _MASK
    return (((mixed ^ (mixed >> 31)) >> 11) + 0.5) * _UNIT


_log = structlog.get_logger(__name__)


class AliasCache:
    """Every alias by its name. A change that another process makes counts from the next request on, as one
    of a key does: whoever looks after the keys calls :meth:`read` in a thread and then what it gives. All
    else belongs to the event loop's thread.
    """

    def __init__(self, store: AliasStore) -> None:
        """Reads every alias. Raises StateError."""
        self._store = store
        self._revision = -1
        self.choices: Mapping[str, TargetChoice] = {}
        self.records: Mapping[str, AliasRecord] = {}
        self.versioned: Collection[str] = ()
        """Models of which some alias names a version."""
        self.read()()

    def read(self) -> Callable[[], None]:
        """Read them again if any has changed; what is called takes them up. Raises StateError."""
        revision, found, unreadable = self._store.changed_since(self._revision)
        if found is None:
            return lambda: None
        records = {record.alias.name: record for record in found}
        choices = {name: TargetChoice(record.alias) for name, record in records.items()}

        def take_up() -> None:
            if self._revision >= 0:
                _log.info("aliases_changed", aliases=len(records))
            for name in unreadable:
                _log.error("alias_unreadable", alias=name)
            self._set(revision, records, choices)

        return take_up

    def _set(
        self, revision: int, records: Mapping[str, AliasRecord], choices: Mapping[str, TargetChoice]
    ) -> None:
        self.records, self.choices, self._revision = records, choices, revision
        targets = (target for record in records.values() for target in record.alias.targets)
        self.versioned = frozenset(target.model for target in targets if target.version is not None)
