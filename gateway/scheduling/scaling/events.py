"""Known events: times at which more will be asked for, or so many replicas shall be there. Pure.

Times are seconds since 1970. An event that is repeated is so by the clock on the wall of its zone, so that it
stays at nine when the clocks change.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo

from gateway.domain.scopes import matches


@dataclass(frozen=True, slots=True)
class KnownEvent:
    """Of a calendar. It has a ``factor``, ``replicas``, or both."""

    name: str
    starts: datetime
    """With its zone."""
    ends: datetime
    models: Sequence[str] = ("*",)
    """Names or shell patterns."""
    classes: Sequence[str] | None = None
    """Of device; None: all."""
    factor: float | None = None
    """So many times as much is asked for as is usual."""
    replicas: int | None = None
    """So many are wanted at least, of each class that is named, or of all together."""
    every_days: int | None = None
    """It is repeated after so many days; None: it is once."""
    until: datetime | None = None
    """It is repeated no later."""

    def is_of(self, model: str, device: str) -> bool:
        """Whether it is about the model on that class."""
        named = self.classes is None or device in self.classes
        return named and any(matches(model, each) for each in self.models)

    def at(self, at_s: float) -> float | None:
        """When the occurrence began that ``at_s`` is in; None: it is in none."""
        zone = self.starts.tzinfo
        assert zone is not None
        now = datetime.fromtimestamp(at_s, zone)
        lasts = self.ends - self.starts
        if self.every_days is None:
            begins = self.starts
        else:
            passed = (now.replace(tzinfo=None) - self.starts.replace(tzinfo=None)).days
            begins = _later(self.starts, passed // self.every_days * self.every_days, zone)
            if begins > now:
                begins = _later(begins, -self.every_days, zone)
        if begins < self.starts or (self.until is not None and begins > self.until):
            return None
        begin_s = begins.timestamp()
        return begin_s if begin_s <= at_s < begin_s + lasts.total_seconds() else None


@dataclass(frozen=True, slots=True)
class EventDemand:
    """What events want of a model on a class at a time."""

    factor: float = 1.0
    of_class: int = 0
    """Replicas at least, by events that name the class."""
    together: int = 0
    """Of all classes together, by events that name none."""
    began_s: float | None = None
    """When the earliest of them began; None: there is none."""
    names: tuple[str, ...] = ()


def demand_at(events: Sequence[KnownEvent], model: str, device: str, at_s: float) -> EventDemand:
    """Of all events that are at ``at_s``: the product of their factors, the most of their replicas."""
    factor, of_class, together, began, names = 1.0, 0, 0, list[float](), list[str]()
    for each in events:
        begin_s = each.at(at_s) if each.is_of(model, device) else None
        if begin_s is None:
            continue
        factor *= 1.0 if each.factor is None else each.factor
        if each.classes is None:
            together = max(together, each.replicas or 0)
        else:
            of_class = max(of_class, each.replicas or 0)
        began.append(begin_s)
        names.append(each.name)
    return EventDemand(factor, of_class, together, min(began, default=None), tuple(names))


def is_unusual(events: Sequence[KnownEvent], model: str, device: str, at_s: float) -> bool:
    """Whether what was asked for then was no pattern: an event that is not repeated changed it."""
    return any(
        each.factor is not None
        and each.every_days is None
        and each.is_of(model, device)
        and each.at(at_s) is not None
        for each in events
    )


def _later(when: datetime, days: int, zone: tzinfo) -> datetime:
    """The same time by the clock on the wall."""
    return (when.replace(tzinfo=None) + timedelta(days=days)).replace(tzinfo=zone)
