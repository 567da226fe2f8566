"""The state of an engine as a whole, from those of its deployments, and its log. Time is an argument."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import structlog

from shared.protocol import limits
from shared.protocol.engine_state import EngineState
from shared.protocol.messages import DeploymentState, DeploymentStatus

log = structlog.get_logger("agent.engine")

LOADING_LOG_S = 5.0
LATER_LOADING_LOG_S = 30.0
FREQUENT_S = 30.0
"""Between two logs that an engine is still loading: for so long the first, then the second."""


def engine_state(
    name: str, deployments: Sequence[DeploymentState], *, kind: str = "", without: str = ""
) -> EngineState:
    """Loaded when one of its deployments is, and so on down to failed; without any, for ``without``."""
    for status in (DeploymentStatus.LOADED, DeploymentStatus.LOADING, DeploymentStatus.LOADABLE):
        found = [deployment for deployment in deployments if deployment.status is status]
        if found:
            return EngineState(name, status, found[0].reason, kind)
    reason = deployments[0].reason if deployments else without
    return EngineState(name, DeploymentStatus.FAILED, reason[: limits.REASON_CHARS], kind)


def failed(deployments: Sequence[DeploymentState], reason: str) -> tuple[DeploymentState, ...]:
    """``deployments`` as failed ones, so that it is known why a model is not there."""
    reason = reason[: limits.REASON_CHARS]
    return tuple(
        replace(state, status=DeploymentStatus.FAILED, reason=reason, running=0, waiting=0, kv_use=None)
        for state in deployments
    )


def reason_nothing_is_served(engines: Sequence[EngineState], without: str = "") -> str:
    """Empty when one of them serves, or would when asked to; ``without``: the reason where there are none."""
    serving = (DeploymentStatus.LOADED, DeploymentStatus.LOADABLE)
    if any(engine.status in serving for engine in engines):
        return ""
    reasons = [f"{engine.name} is {engine.status}: {engine.reason}".rstrip(": ") for engine in engines]
    return ("; ".join(reasons) or without)[: limits.REASON_CHARS]


@dataclass(slots=True)
class _Report:
    state: EngineState
    since_s: float
    """When it took this status on."""
    logged_s: float
    """When its status was last logged."""


class EngineReports:
    """Logs why an engine cannot be served, once per reason, and how far an engine is that is loading."""

    def __init__(self) -> None:
        self._reports: dict[str, _Report] = {}

    def note(self, state: EngineState, now_s: float, *, started_here: bool) -> None:
        """To be called after each change, and every second or so. ``started_here``: the agent started the
        engine, and its supervisor logs how that ended."""
        report = self._reports.get(state.name)
        if report is None or report.state.status is not state.status:
            self._reports[state.name] = _Report(state, now_s, now_s)
            loss_logged = report is not None and report.state.status is DeploymentStatus.LOADED
            if state.status is DeploymentStatus.LOADING:
                about = {} if state.load_s is None else {"load_s": round(state.load_s, 1)}
                log.info("engine is loading", engine=state.name, reason=state.reason, **about)
            elif not started_here and not loss_logged:
                _log_failure(state)
            return
        if state.status is DeploymentStatus.LOADING:
            _log_progress(report, state, now_s)
        elif state.reason != report.state.reason and not started_here:
            _log_failure(state)
        report.state = state


def _log_progress(report: _Report, state: EngineState, now_s: float) -> None:
    every_s = LOADING_LOG_S if now_s - report.since_s <= FREQUENT_S else LATER_LOADING_LOG_S
    if now_s - report.logged_s >= every_s:
        report.logged_s = now_s
        so_far = state.loading_words or f"{round(now_s - report.since_s)} s"
        log.info("engine is still loading", engine=state.name, reason=state.reason, so_far=so_far)


def _log_failure(state: EngineState) -> None:
    if state.status is DeploymentStatus.FAILED:
        log.warning("engine cannot be served", engine=state.name, reason=state.reason)
