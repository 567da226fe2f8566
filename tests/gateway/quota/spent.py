"""What tenants have used, for tests without a ledger."""

from gateway.quota.spending import Amounts, Spending


def spend(spending: Spending, tenant: str, tokens: int, gpu_s: float, money: float, wall_s: float) -> None:
    """``tenant`` used so much, as :class:`gateway.quota.usage.UsageLedger` adds it."""
    if not spending.day_begins_s <= wall_s < spending.day_ends_s:
        spending.begin_day(wall_s)
    for sums in spending.sums(tenant):
        sums.add(Amounts(tokens, gpu_s, money))
