"""How much keys and tenants may have: per minute, at once, and of budgets. Reserved at admission,
settled by what engines report."""

from gateway.quota.limits import Guard, Limits, ReservedUsage, unreported_usage
from gateway.quota.spending import Spending

__all__ = ["Guard", "Limits", "ReservedUsage", "Spending", "unreported_usage"]
