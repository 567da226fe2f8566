"""How much keys and tenants may have: per minute, at once, and of budgets. Reserved at admission,
settled by what engines report."""

from gateway.limits.company import GpuTimeMeter
from gateway.limits.shares import QueueShares
from gateway.limits.spending import Spending
from gateway.limits.stage import Guard, Held, Limits, untold

__all__ = ["GpuTimeMeter", "Guard", "Held", "Limits", "QueueShares", "Spending", "untold"]
