"""What is set of regions, and which of them never get what did not ask for them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from hashlib import blake2b
from math import isinf

from gateway.domain.residency import AllBut, Residency, narrowed

MOST_CONSTRAINED = 256
"""Constraints of requests for which the one without the regions that cost infinitely is remembered."""


@dataclass(frozen=True, slots=True)
class TrafficShift:
    """``share`` (0 to 1) of the requests of some models and tenants are moved to a region."""

    to: str
    share: float
    model: str = "*"
    """A shell pattern."""
    tenant: str | None = None
    """None: all tenants'."""

    def concerns(self, model: str, tenant: str) -> bool:
        """Whether it is about such a request."""
        return (self.tenant is None or self.tenant == tenant) and fnmatchcase(model, self.model)


@dataclass(frozen=True, slots=True)
class RegionSettings:
    """A slice of the gateway's settings. Prices are seconds of waiting that going there is worth; seconds of
    ``nearest_first`` are those of the tunnel's round trip."""

    label: str = "region"
    """Its values are the regions."""
    home: str = ""
    """The region of this gateway, and of its own agents without the label."""
    nearest_first: bool = True
    """The round trip counts as part of the price."""
    price_s: float = 0.0
    """Of the regions that ``prices`` does not name; home costs nothing."""
    prices: Mapping[str, float] = field(default_factory=dict)
    """By ``TO`` or ``FROM>TO``."""
    pilot: frozenset[str] = frozenset()
    """Regions that are used only when the others fail or are full."""
    pilot_wait_s: float = 1.0
    """So long work waits elsewhere before they are used."""
    shifts: tuple[TrafficShift, ...] = ()
    shift_wait_s: float = 1.0
    """So long requests that are moved wait for the region they are moved to."""
    blip_s: float = 2.0
    """A region that is back within this time counts as there all the while."""
    blips: int = 3
    """Not so where it was away so often within ``forget_s``."""
    failback_s: float = 60.0
    """A region that was away is left alone for so long, twice as long each time in a row."""
    failback_most_s: float = 900.0
    ramp_s: float = 60.0
    """Then it gets more and more of what would go there, all of it after so long."""
    forget_s: float = 900.0
    """Failures longer ago than this are not counted any more."""

    def price_of(self, region: str) -> float:
        """What going there costs from here, the round trip not counted."""
        exact = self.prices.get(f"{self.home}>{region}") if self.home else None
        if exact is not None:
            return exact
        return self.prices.get(region, 0.0 if region == self.home else self.price_s)

    @property
    def never(self) -> frozenset[str]:
        """Regions that cost infinitely."""
        names = {name.rpartition(">")[2] for name in self.prices}
        return frozenset(name for name in names if isinf(self.price_of(name)))

    def shifted_to(self, model: str, tenant: str, key: str) -> str | None:
        """The region to which the request of this key is moved; None: to none. Equal in every process, and
        for all requests of a session."""
        drawn = None
        for shift in self.shifts:
            if shift.concerns(model, tenant):
                drawn = draw(key, "shift") if drawn is None else drawn
                if drawn < shift.share:
                    return shift.to
                drawn -= shift.share
        return None


class NeverRegions:
    """Keeps requests from regions that cost infinitely, unless they may run in no others: who asks for such a
    region by its name gets it."""

    def __init__(self, settings: RegionSettings) -> None:
        self._label = settings.label
        self.regions = settings.never
        self._alone = Residency(((settings.label, AllBut(self.regions)),)) if self.regions else None
        self._known: dict[Residency | None, Residency | None] = {None: self._alone}

    def constrained(self, where: Residency | None) -> Residency | None:
        """Where a request may run that may run at ``where``."""
        if self._alone is None:
            return where
        found = self._known.get(where)
        if found is None:
            if len(self._known) >= MOST_CONSTRAINED:
                self._known = {None: self._alone}
            found = self._known[where] = self._constrained(where)
        return found

    def _constrained(self, where: Residency | None) -> Residency | None:
        named = dict(where.allowed).get(self._label) if where is not None else None
        if named is not None and (isinstance(named, AllBut) or named <= self.regions):
            return where
        return narrowed(where, self._alone)


def draw(key: str, purpose: str) -> float:
    """A number from 0 to under 1 for ``key``, evenly spread; of another ``purpose`` another one."""
    text = f"{purpose}\n{key}".encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=6).digest(), "little") / (1 << 48)
