"""Deployments' health, and what follows from it
(`docs/internals.md`, *When engines fail*). Pure: no clock, no I/O, nothing random."""

from gateway.scheduling.health.budget import AnswerTimes, AttemptBudgets, HedgeBudget, RetryBudget
from gateway.scheduling.health.circuit import CircuitState, Fault
from gateway.scheduling.health.failing_keys import FailingKeys
from gateway.scheduling.health.hints import GivenHints, HeardHints, SuspectHint
from gateway.scheduling.health.outliers import AnswerPace, outliers
from gateway.scheduling.health.record import DeploymentHealth, HealthRegistry, HealthSettings

__all__ = [
    "AnswerPace",
    "AnswerTimes",
    "AttemptBudgets",
    "CircuitState",
    "DeploymentHealth",
    "FailingKeys",
    "Fault",
    "GivenHints",
    "HealthRegistry",
    "HealthSettings",
    "HeardHints",
    "HedgeBudget",
    "RetryBudget",
    "SuspectHint",
    "outliers",
]
