"""Names that clients ask for and what they stand for. Pure data.

People write a target ``MODEL``, ``MODEL@VERSION`` or, with a weight, ``MODEL@VERSION=WEIGHT``. ``MODEL@`` is
the model as served by those that say no version; an ``@`` in a model's own name is written twice.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from shared.protocol.limits import MODEL_NAME_CHARS

TARGETS = 16
"""The most targets of one alias; each is scored for every request."""

FALLBACKS = 8
MOST_WEIGHT = 1e6
_AT = "\0"
"""Stands for an ``@`` written twice while a target is read; no name can hold it."""


class BadAlias(ValueError):
    """What cannot be an alias, a target or a weight. The message says why."""


@dataclass(frozen=True, slots=True)
class AliasTarget:
    """A model, or one version of it, and its share beside the other targets: ``weight`` of the sum of all."""

    model: str
    version: str | None = None
    """None: any. Empty: that of deployments that say none."""
    weight: float = 1.0

    def __str__(self) -> str:
        """As :func:`read_target` reads it, without the weight."""
        model = self.model.replace("@", "@@")
        return model if self.version is None else f"{model}@{self.version}"

    def same(self, other: "AliasTarget") -> bool:
        """Whether it is the same model and version."""
        return self.model == other.model and self.version == other.version


@dataclass(frozen=True, slots=True)
class AliasMirror:
    """A shadow: ``share`` (over 0, at most 1) of the requests are also sent to ``target``."""

    target: AliasTarget
    share: float


@dataclass(frozen=True, slots=True)
class Alias:
    """What a name stands for and what goes with it. Made by hand it must pass :func:`check_alias`."""

    name: str
    targets: tuple[AliasTarget, ...] = ()
    """Empty: the name is a model's, and stands for that model."""
    sticky: bool = True
    """Requests of one session go to one target."""
    mirror: AliasMirror | None = None
    fallback: tuple[AliasTarget, ...] = ()
    """What may answer instead, the first choice first. Names of other aliases count as such."""

    @property
    def stands_for(self) -> tuple[AliasTarget, ...]:
        """Its targets, at least one."""
        return self.targets or (AliasTarget(self.name),)

    @property
    def shadows(self) -> bool:
        """Whether its name is also that of one of the models it stands for."""
        return any(target.model == self.name for target in self.stands_for)

    @property
    def empty(self) -> bool:
        """Whether it says nothing that would not be so without it."""
        return not (self.targets or self.mirror or self.fallback)

    def to_dict(self) -> dict[str, Any]:
        """All but the name, as :func:`alias_of` reads it."""
        mirror = self.mirror
        return {
            "targets": [asdict(target) for target in self.targets],
            "sticky": self.sticky,
            "mirror": None if mirror is None else {**_named(mirror.target), "share": mirror.share},
            "fallback": [_named(target) for target in self.fallback],
        }


def _named(target: AliasTarget) -> dict[str, Any]:
    """A target without its weight."""
    return {"model": target.model, "version": target.version}


def alias_of(name: str, value: Mapping[str, Any]) -> Alias:
    """What :meth:`Alias.to_dict` made. Raises BadAlias."""
    try:
        mirror = value["mirror"]
        alias = Alias(
            name,
            tuple(_target(each) for each in value["targets"]),
            bool(value["sticky"]),
            None if mirror is None else AliasMirror(_target(mirror), float(mirror["share"])),
            tuple(_target(each) for each in value["fallback"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadAlias(f"what is stored of {name!r} cannot be read: {error!r}") from error
    check_alias(alias)
    return alias


def _target(value: Mapping[str, Any]) -> AliasTarget:
    version = value["version"]
    return AliasTarget(
        str(value["model"]), None if version is None else str(version), float(value.get("weight", 1.0))
    )


def check_alias(alias: Alias) -> None:
    """Raises BadAlias."""
    check_name(alias.name)
    if len(alias.targets) > TARGETS:
        raise BadAlias(f"{len(alias.targets)} targets; {TARGETS} are allowed")
    if len(alias.fallback) > FALLBACKS:
        raise BadAlias(f"{len(alias.fallback)} fallbacks; {FALLBACKS} are allowed")
    for these in (alias.targets, alias.fallback):
        _check_targets(these)
    if alias.targets and not any(target.weight for target in alias.targets):
        raise BadAlias("every weight is 0: somebody must get the requests")
    if any(each.model == alias.name and each.version is None for each in alias.fallback):
        raise BadAlias(f"{alias.name!r} cannot be its own fallback")
    if alias.mirror is not None:
        _check_targets((alias.mirror.target,))
        if not 0 < alias.mirror.share <= 1:
            raise BadAlias(f"a share of {alias.mirror.share:g}; it must be over 0 and at most 1")


def _check_targets(targets: Sequence[AliasTarget]) -> None:
    for place, target in enumerate(targets):
        check_name(target.model)
        if target.version is not None:
            _check_version(target.version)
        if not (math.isfinite(target.weight) and 0 <= target.weight <= MOST_WEIGHT):
            raise BadAlias(f"a weight of {target.weight:g} for {target}; 0 to {MOST_WEIGHT:,.0f} are allowed")
        if any(target.same(other) for other in targets[:place]):
            raise BadAlias(f"{target} is named twice")


def check_name(name: str) -> None:
    """A name that clients can ask for. Raises BadAlias."""
    if not 0 < len(name) <= MODEL_NAME_CHARS or not name.isprintable() or " " in name:
        raise BadAlias(
            f"{name[:80]!r} is no model's name: 1 to {MODEL_NAME_CHARS} characters, none of them blank"
        )


def _check_version(version: str) -> None:
    if len(version) > MODEL_NAME_CHARS or not version.isprintable() or version != version.strip():
        raise BadAlias(f"{version[:80]!r} is no version: at most {MODEL_NAME_CHARS} printable characters")


def check_together(aliases: Mapping[str, Alias], alias: Alias) -> None:
    """That ``alias`` may be one of ``aliases``: a target is always a model. Raises BadAlias."""
    others = [each for name, each in aliases.items() if name != alias.name]
    no_models = {each.name for each in others if not each.shadows}
    for target in _destinations(alias):
        if target.model in no_models:
            raise BadAlias(
                f"{target.model!r} is an alias itself, and a target must be a model: "
                f"see what it stands for with: trunkline alias list"
            )
    if not alias.shadows:
        for other in others:
            if any(target.model == alias.name for target in _destinations(other)):
                raise BadAlias(f"{alias.name!r} is a target of the alias {other.name!r}, so it is a model")


def _destinations(alias: Alias) -> tuple[AliasTarget, ...]:
    """Where requests for it go."""
    return alias.targets if alias.mirror is None else (*alias.targets, alias.mirror.target)


def read_target(text: str, *, weighted: bool = False) -> AliasTarget:
    """The target in ``MODEL[@VERSION]``, or ``MODEL[@VERSION][=WEIGHT]``. Raises BadAlias."""
    weight = 1.0
    if weighted and "=" in text:
        text, _, number = text.rpartition("=")
        try:
            weight = float(number)
        except ValueError:
            raise BadAlias(f"{number[:80]!r} is no weight; write for example {text}=10") from None
    model, at, version = text.replace("@@", _AT).partition("@")
    target = AliasTarget(model.replace(_AT, "@"), version.replace(_AT, "@@") if at else None, weight)
    _check_targets((target,))
    return target


def read_targets(texts: Sequence[str]) -> tuple[AliasTarget, ...]:
    """Targets with weights, all or none of them. Raises BadAlias."""
    if not texts:
        raise BadAlias("no target is named")
    named = sum("=" in text for text in texts)
    if 0 < named < len(texts):
        raise BadAlias("give every target a weight, or none: for example m@v1=90 m@v2=10")
    return tuple(read_target(text, weighted=True) for text in texts)
