"""What is seen of deployments' health and what follows (SCHEDULING §6). Pure: no clock, no I/O, no chance."""

from gateway.scheduling.health.book import HealthBook
from gateway.scheduling.health.budget import HedgeBudget, RetryBudget
from gateway.scheduling.health.circuit import Circuit, CircuitState, Fault
from gateway.scheduling.health.outliers import outliers
from gateway.scheduling.health.pace import AnswerPace
from gateway.scheduling.health.quantile import AnswerTimes
from gateway.scheduling.health.record import DeploymentHealth, HealthSettings
from gateway.scheduling.health.suspects import Suspects

__all__ = [
    "AnswerPace",
    "AnswerTimes",
    "Circuit",
    "CircuitState",
    "DeploymentHealth",
    "Fault",
    "HealthBook",
    "HealthSettings",
    "HedgeBudget",
    "RetryBudget",
    "Suspects",
    "outliers",
]
