"""What the operator wants of scaling, as this room reads it. Plain data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gateway.domain.scopes import matches
from gateway.scheduling.scaling.data import ScalingRule


@dataclass(frozen=True, slots=True)
class ClassSettings:
    """A class of device that replicas can be had of."""

    price_hour: float | None = None
    slots: int | None = None
    min_replicas: int = 0
    max_replicas: int = 1000
    ready_s: float | None = None


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """What is different for models that a pattern names."""

    pattern: str
    rule: ScalingRule
    classes: Sequence[str] | None = None


@dataclass(frozen=True, slots=True)
class ScalingSettings:
    """All of it."""

    rule: ScalingRule = field(default_factory=ScalingRule)
    classes: Mapping[str, ClassSettings] = field(default_factory=dict)
    models: Sequence[ModelSettings] = ()
    interval_s: float = 5.0
    hold_s: float = 600.0
    ready_s: float = 180.0

    def of(self, model: str) -> tuple[ScalingRule, Sequence[str]]:
        """The rule for ``model``, and the classes of which replicas can be had for it."""
        for each in self.models:
            if matches(model, each.pattern):
                return each.rule, list(self.classes) if each.classes is None else each.classes
        return self.rule, list(self.classes)

    def held_s(self, model: str) -> float:
        """How long requests for ``model`` wait when nothing serves it."""
        return self.hold_s if self.of(model)[0].min_replicas == 0 else 0.0
