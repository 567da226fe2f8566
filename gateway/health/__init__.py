"""What is seen of deployments' health and what follows (SCHEDULING §6). Pure: no clock, no I/O, no chance."""

from gateway.health.book import HealthBook
from gateway.health.budget import HedgeBudget, RetryBudget
from gateway.health.circuit import Circuit, CircuitState, Fault
from gateway.health.outliers import outliers
from gateway.health.pace import AnswerPace
from gateway.health.quantile import AnswerTimes
from gateway.health.record import DeploymentHealth, HealthSettings
from gateway.health.suspects import Suspects

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
