"""What may be set as limits, budgets and prices, and what of it can be; what usage is added up by."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

MOST_COUNT = 10**12
"""The largest limit of requests or tokens; more would be no limit."""

MOST_AMOUNT = 1e12
"""The largest amount of GPU-seconds or money, and the highest price."""

WEIGHTS = (0.001, 1000.0)
"""Least and greatest of a tenant's weight."""


class UsageGrouping(StrEnum):
    """What totals of usage are made for."""

    KEY = "key"
    TENANT = "tenant"
    MODEL = "model"
    DEPLOYMENT = "deployment"
    DAY = "day"


class BadQuota(ValueError):
    """A limit, budget or price that cannot be. The message says which and why."""


def _check_count(name: str, value: int | None) -> None:
    if value is not None and not 1 <= value <= MOST_COUNT:
        raise BadQuota(f"{name} {value}: 1 to {MOST_COUNT:,}")


@dataclass(frozen=True, slots=True)
class Rates:
    """How much at once: None is no limit. Per minute is: in any 60 s."""

    rpm: int | None = None
    """Requests per minute."""
    tpm: int | None = None
    """Tokens per minute, of prompts and answers together."""
    concurrency: int | None = None
    """Requests at once, from admission to the last byte of the answer."""

    def __post_init__(self) -> None:
        """Raises BadQuota."""
        for each in fields(self):
            _check_count(each.name, getattr(self, each.name))

    def __bool__(self) -> bool:
        return not (self.rpm is None and self.tpm is None and self.concurrency is None)


@dataclass(frozen=True, slots=True)
class Budgets:
    """How much in a calendar day or month (UTC): None is no limit. Money is in whatever prices are in."""

    tokens_per_day: int | None = None
    tokens_per_month: int | None = None
    gpu_seconds_per_day: float | None = None
    gpu_seconds_per_month: float | None = None
    money_per_day: float | None = None
    money_per_month: float | None = None

    def __post_init__(self) -> None:
        """Raises BadQuota."""
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name.startswith("tokens"):
                _check_count(each.name, value)
            elif value is not None and not 0 < value <= MOST_AMOUNT:
                raise BadQuota(f"{each.name} {value:g}: more than 0 and at most {MOST_AMOUNT:g}")

    def __bool__(self) -> bool:
        return any(getattr(self, each.name) is not None for each in fields(self))

    def shares_used(self, period: str, tokens: int, gpu_s: float, money: float) -> list[float]:
        """Which shares of the budgets of ``period``, ``day`` or ``month``, are used when so much is spent."""
        names = {"tokens": tokens, "gpu_seconds": gpu_s, "money": money}
        budgets = {name: getattr(self, f"{name}_per_{period}") for name in names}
        return [spent / budgets[name] for name, spent in names.items() if budgets[name] is not None]


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """What a tenant may have, all its keys together."""

    rates: Rates = Rates()
    budgets: Budgets = Budgets()
    queue_share: float | None = None
    """The share of the queue's places that the tenant's requests may take; None: all."""
    weight: float | None = None
    """Its share beside other tenants'; None: what the gateway's settings say, or 1."""

    def __post_init__(self) -> None:
        """Raises BadQuota."""
        if self.queue_share is not None and not 0 < self.queue_share <= 1:
            raise BadQuota(f"queue_share {self.queue_share:g}: more than 0 and at most 1")
        least, most = WEIGHTS
        if self.weight is not None and not least <= self.weight <= most:
            raise BadQuota(f"weight {self.weight:g}: {least:g} to {most:g}")

    def facts(self) -> dict[str, Any]:
        """Every limit by its name, as the store and ``--json`` have them; :meth:`of` is the way back."""
        found = asdict(self)
        return {**found.pop("rates"), **found.pop("budgets"), **found}

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> "TenantLimits":
        """From what :meth:`facts` gives; what is not named has no limit. Raises BadQuota."""
        return cls(
            Rates(**{each.name: facts.get(each.name) for each in fields(Rates)}),
            Budgets(**{each.name: facts.get(each.name) for each in fields(Budgets)}),
            facts.get("queue_share"),
            facts.get("weight"),
        )


NAMES = tuple(TenantLimits().facts())
"""The names of everything that can be set for a tenant."""


@dataclass(frozen=True, slots=True)
class Price:
    """The prices of one model: for a million prompt tokens, a million answer tokens, and a GPU-second."""

    input: float = 0.0
    output: float = 0.0
    gpu_second: float = 0.0

    def __post_init__(self) -> None:
        """Raises BadQuota."""
        for each in fields(self):
            value = getattr(self, each.name)
            if not 0 <= value <= MOST_AMOUNT:
                raise BadQuota(f"price {each.name} {value:g}: 0 to {MOST_AMOUNT:g}")

    def of_tokens(self, input_tokens: int, output_tokens: int) -> float:
        """What so many cost."""
        return (input_tokens * self.input + output_tokens * self.output) / 1e6


FREE = Price()
"""Of models that nobody named a price for."""
