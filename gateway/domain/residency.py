"""Where a request may run: the labels its deployment must carry. Pure data.

People write ``region=eu,region=uk,tier=gold``: a label named more than once may have any of its values, and
all labels named must be right. A deployment that lacks a label named is not one of them. Where nothing is
said (``None``, not an empty :class:`Residency`) every deployment will do.
"""

import re
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import lru_cache

WHERE_CHARS = 2048
"""Longest text of a constraint."""

WHERE_PAIRS = 64

LABEL_CHARS = 63
"""Longest label name or value, as Kubernetes has it, so that its labels can be taken over."""

LABEL_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?")
LABEL_VALUE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?|")


VALUES_CHARS = 1024
"""Longest text of all values of one label of an identity."""


class BadResidency(ValueError):
    """A text that is no constraint. The message says why."""


class EmptyResidency(ValueError):
    """Two constraints that no deployment can meet together; ``label`` is one on which they differ."""

    def __init__(self, label: str) -> None:
        super().__init__(f"no value of the label {label!r} meets both")
        self.label = label


class AllBut(frozenset[str | None]):
    """All values of a label but these, and having none. It is a set of what it does not hold, so that whoever
    asks a constraint whether it allows a value need not know of it."""

    __slots__ = ()

    def __contains__(self, value: object) -> bool:
        return not super().__contains__(value)

    def __and__(self, other: AbstractSet[object]) -> "frozenset[str | None]":
        if isinstance(other, AllBut):
            return AllBut(frozenset(self) | frozenset(other))
        return frozenset(value for value in other if isinstance(value, str | None) and value in self)

    __rand__ = __and__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AllBut) and frozenset(self) == frozenset(other)

    def __hash__(self) -> int:
        return hash(("all but", frozenset(self)))


@dataclass(frozen=True, slots=True)
class Residency:
    """A constraint. Equal constraints are equal and have equal hashes, however they were written.

    ``allowed`` holds the values that will do for each label named, in the order of the names: one label and
    one value at least. None among them: a deployment without the label will do (:meth:`inheriting`).
    Values may be :class:`AllBut` some; no text and no other gateway says such a constraint.
    """

    allowed: tuple[tuple[str, frozenset[str | None]], ...]

    def allows(self, labels: Mapping[str, str]) -> bool:
        """Whether a deployment with these labels will do."""
        for name, values in self.allowed:  # noqa: SIM110 (all() takes twice as long)
            if labels.get(name) not in values:
                return False
        return True

    def inheriting(self, labels: Mapping[str, str]) -> "Residency":
        """The same, but a deployment that lacks a label counts as having that of ``labels``."""
        return Residency(
            tuple(
                (name, values | {None} if labels.get(name) in values else values)
                for name, values in self.allowed
            )
        )

    def to_dict(self) -> dict[str, list[str]]:
        """Values by label, in order; labels that may have all values :class:`AllBut` some are left out."""
        return {
            name: sorted(value for value in values if value is not None)
            for name, values in self.allowed
            if not isinstance(values, AllBut)
        }

    def __str__(self) -> str:
        """As :func:`read_where` reads it; equal constraints give equal texts. What must not be is written
        ``region!=us``, which it does not read."""
        said = [f"{name}={value}" for name, values in self.to_dict().items() for value in values]
        for name, values in self.allowed:
            if isinstance(values, AllBut):
                barred = sorted(value for value in values if value is not None)
                said += [f"{name}!={value}" for value in barred]
        return ",".join(said)


def label_values(text: str) -> frozenset[str]:
    """The values of one label of an identity, which may be several, separated by commas."""
    return frozenset(text.split(","))


def are_label_values(text: str) -> bool:
    """Whether ``text`` is a value of a label, or several different ones, separated by commas."""
    values = text.split(",")
    usable = all(LABEL_VALUE.fullmatch(value) is not None for value in values)
    alone = len(values) == 1 or ("" not in values and len(set(values)) == len(values))
    return usable and alone and len(text) <= VALUES_CHARS


def labels_within(
    identity: Mapping[str, str], said: Mapping[str, str], *, exact: bool = False
) -> dict[str, str]:
    """The labels of a deployment: those that the identity of its agent allows of what its agent ``said``.

    A label with one value in the identity has it, whatever is said, unless all that is said is ``exact``:
    then it must have been said. Of several values the one that is said counts, if it is among them.
    """
    found: dict[str, str] = {}
    for name, text in identity.items():
        if not exact and "," not in text:
            found[name] = text
        elif said.get(name) in label_values(text):
            found[name] = said[name]
    return found


def where_of(values: Mapping[str, Iterable[str]]) -> Residency:
    """The constraint that each label has one of its ``values``. Raises BadResidency."""
    allowed = {name: frozenset(each) for name, each in values.items()}
    pairs = [(name, value) for name, each in allowed.items() for value in each]
    if not pairs or not all(allowed.values()):
        raise BadResidency("no label and value is named; write for example region=eu")
    if len(pairs) > WHERE_PAIRS:
        raise BadResidency(f"{len(pairs)} labels and values are named; {WHERE_PAIRS} are allowed")
    for name, value in pairs:
        if LABEL_NAME.fullmatch(name) is None or LABEL_VALUE.fullmatch(value) is None:
            raise BadResidency(
                f"{f'{name}={value}'[:80]!r} is no label: name and value are at most {LABEL_CHARS} of "
                "letters, digits and ._/- that begin and end with a letter or digit"
            )
    return Residency(tuple(sorted(allowed.items())))


@lru_cache(maxsize=256)
def read_where(text: str) -> Residency:
    """The constraint in ``NAME=VALUE[,NAME=VALUE…]``, blanks around each ignored. Raises BadResidency."""
    if len(text) > WHERE_CHARS:
        raise BadResidency(f"it has {len(text)} characters; {WHERE_CHARS} are allowed")
    values: dict[str, set[str]] = {}
    for pair in text.split(","):
        name, equals, value = (part.strip(" \t") for part in pair.partition("="))
        if not equals:
            raise BadResidency(f"{pair.strip()[:80]!r} is not NAME=VALUE, as region=eu")
        values.setdefault(name, set()).add(value)
    return where_of(values)


def narrowed(policy: Residency | None, wish: Residency | None) -> Residency | None:
    """What meets both: a wish can narrow what the policy allows, never widen it. Raises EmptyResidency."""
    if policy is None or wish is None or policy == wish:
        return wish if policy is None else policy
    both = dict(policy.allowed)
    for name, values in wish.allowed:
        both[name] = both.get(name, values) & values
        if not both[name]:
            raise EmptyResidency(name)
    return Residency(tuple(sorted(both.items())))
