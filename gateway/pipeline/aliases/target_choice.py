"""Which of an alias's targets a request goes to.

A target is chosen by weighted rendezvous hashing. Each target draws a number from a hash of
the request's key and of itself, the smaller the larger its weight, and the smallest wins (an exponential
race: the logarithmic method of Schindelhauer and Schomaker, "Weighted Distributed Hash Tables", SPAA 2005).
So each gets its share of the keys; a key stays where it is while weights change, unless its target got less
or another one more; and when a target goes only its own keys move, each to its next choice.
"""

from collections.abc import Sequence
from hashlib import blake2b
from math import log

from gateway.domain.aliases import Alias, AliasTarget

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


def uniform_hash(key: str, purpose: str) -> float:
    """A number over 0 and under 1 for ``key``, evenly spread; of another ``purpose`` another one."""
    return _unit(_hash(key) ^ _hash(purpose))


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def _unit(mixed: int) -> float:
    """Over 0 and under 1; splitmix64's finaliser makes near inputs unlike."""
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB & _MASK
    return (((mixed ^ (mixed >> 31)) >> 11) + 0.5) * _UNIT
