"""What can be set of regions: which of them requests go to."""

from math import isinf
from typing import Annotated

from pydantic import AfterValidator, Field, field_serializer, model_validator

from gateway.domain.residency import LABEL_CHARS, LABEL_VALUE
from gateway.runtime.config.cluster import SettingsTable
from gateway.runtime.config.uplink import LabelName


def _check_region(text: str) -> str:
    if LABEL_VALUE.fullmatch(text) is None or not text:
        raise ValueError(f"{text[:80]!r} is no region: a label's value is letters, digits and ._/-")
    return text


def _check_pair(text: str) -> str:
    parts = text.split(">")
    if len(parts) > 2:
        raise ValueError(f"{text[:80]!r} is neither a region nor FROM>TO")
    for part in parts:
        _check_region(part.strip())
    return ">".join(part.strip() for part in parts)


Region = Annotated[str, Field(max_length=LABEL_CHARS), AfterValidator(_check_region)]
Pair = Annotated[str, Field(max_length=2 * LABEL_CHARS + 3), AfterValidator(_check_pair)]
Price = Annotated[float, Field(ge=0, allow_inf_nan=True)]
Time = Annotated[float, Field(ge=0, le=86_400)]


class ShiftTable(SettingsTable):
    """A share of some requests that is moved to a region."""

    to: Region
    share: Annotated[float, Field(ge=0, le=1)]
    model: Annotated[str, Field(min_length=1, max_length=500)] = "*"
    """A shell pattern."""
    tenant: Annotated[str | None, Field(min_length=1, max_length=500)] = None
    """Unset: of all tenants."""


class RegionsTable(SettingsTable):
    """Nearest first, spill-over at a price, shifts, pilot lights, failback: docs/regions.md."""

    enabled: bool = False
    """Requests go to regions as these settings say; else where they are predicted to be done first."""
    label: LabelName = "region"
    """The label of agents and children whose values are the regions."""
    home: Region | None = None
    """The region of this gateway, and of agents without the label."""
    nearest_first: bool = True
    """The measured round trip of a region counts as part of its price."""
    price_s: Annotated[float, Field(ge=0, le=86_400)] = 0.0
    """Of regions that ``prices`` does not name: seconds of waiting here that going there is worth."""
    prices: Annotated[dict[Pair, Price], Field(max_length=1000)] = {}
    """By TO or FROM>TO; inf: never."""
    pilot: Annotated[list[Region], Field(max_length=100)] = []
    """Regions that are used only when the others fail or are full."""
    pilot_wait_s: Time = 1.0
    """So long requests wait elsewhere before a pilot light is used."""
    shifts: Annotated[list[ShiftTable], Field(max_length=1000)] = []
    """The first that concern a request count, up to a share of 1 together."""
    shift_wait_s: Time = 1.0
    """So long requests that are moved wait for the region they are moved to."""
    blip_s: Time = 2.0
    """A region that is back within this time counts as there all the while."""
    blips: Annotated[int, Field(ge=1, le=1000)] = 3
    """Not so where it was away so often within ``forget_s``."""
    failback_s: Time = 60.0
    """A region that was lost is left alone for so long once it is back, twice as long each time in a row."""
    failback_most_s: Time = 900.0
    """The longest of these times."""
    ramp_s: Annotated[float, Field(gt=0, le=86_400)] = 60.0
    """After that its share grows, and is whole after so long."""
    forget_s: Time = 900.0
    """Losses longer ago than this count no more."""

    @field_serializer("prices", when_used="json")
    def _as_written(self, prices: dict[str, float]) -> dict[str, float | str]:
        """JSON has no infinity."""
        return {name: "inf" if isinf(price_s) else price_s for name, price_s in prices.items()}

    @model_validator(mode="after")
    def _fits_together(self) -> "RegionsTable":
        for name, price_s in self.prices.items():
            before, _, to = name.rpartition(">")
            if price_s != price_s:
                raise ValueError(f"regions.prices: the price of {name!r} is no number")
            if before and self.home is None:
                raise ValueError(f"regions.prices: {name!r} is a pair, and regions.home is not set")
            if to == self.home and before in ("", self.home):
                raise ValueError(f"regions.prices: {name!r} is this gateway's own region, and costs nothing")
        if self.home is not None and self.home in self.pilot:
            raise ValueError(f"regions.pilot: {self.home!r} is this gateway's own region (regions.home)")
        for place, shift in enumerate(self.shifts):
            if isinf(self.prices.get(f"{self.home}>{shift.to}", self.prices.get(shift.to, 0.0))):
                raise ValueError(
                    f"regions.shifts.{place}: {shift.to!r} costs infinitely (regions.prices), so nothing is "
                    "moved there"
                )
        if self.failback_s > self.failback_most_s:
            raise ValueError("regions.failback_s is more than regions.failback_most_s")
        return self
