"""What is so of an engine as a whole: made of its deployments, and told in the log. Time is an argument."""

from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from shared.protocol import limits
from shared.protocol.engine_state import EngineState
from shared.protocol.messages import DeploymentState, DeploymentStatus

log = structlog.get_logger("agent.engine")

SAY_LOADING_S = 5.0
"""How often it is said that an engine is still loading, for the first while."""
SAY_SELDOM_S = 30.0
"""How often after that."""
WHILE_S = 30.0


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


def reason_nothing_is_served(engines: Sequence[EngineState], without: str = "") -> str:
    """Empty when one of them serves, or would when asked to; ``without``: the reason where there are none."""
    serving = (DeploymentStatus.LOADED, DeploymentStatus.LOADABLE)
    if any(engine.status in serving for engine in engines):
        return ""
    reasons = [f"{engine.name} is {engine.status}: {engine.reason}".rstrip(": ") for engine in engines]
    return ("; ".join(reasons) or without)[: limits.REASON_CHARS]


@dataclass(slots=True)
class _Said:
    state: EngineState
    since_s: float
    """When it took this status on."""
    said_s: float
    """When something was last said of it."""


class EngineReports:
    """Tells the log why an engine cannot be served, once per reason, and how far one is that is loading."""

    def __init__(self) -> None:
        self._said: dict[str, _Said] = {}

    def note(self, state: EngineState, now_s: float, *, started_here: bool) -> None:
        """To be called after each change, and every second or so. ``started_here``: the agent started the
        engine, and whoever watches over it says how that ended."""
        before = self._said.get(state.name)
        if before is None or before.state.status is not state.status:
            self._said[state.name] = _Said(state, now_s, now_s)
            self._say_new(None if before is None else before.state, state, started_here)
            return
        if state.status is DeploymentStatus.LOADING:
            self._say_again(before, state, now_s)
        elif state.reason != before.state.reason and not started_here:
            _say_failed(state)
        before.state = state

    def _say_new(self, before: EngineState | None, state: EngineState, started_here: bool) -> None:
        if state.status is DeploymentStatus.LOADING:
            about = {} if state.load_s is None else {"load_s": round(state.load_s, 1)}
            log.info("engine is loading", engine=state.name, reason=state.reason, **about)
        elif not started_here and (before is None or before.status is not DeploymentStatus.LOADED):
            _say_failed(state)  # else it was said to be lost

    def _say_again(self, before: _Said, state: EngineState, now_s: float) -> None:
        every_s = SAY_LOADING_S if now_s - before.since_s <= WHILE_S else SAY_SELDOM_S
        if now_s - before.said_s < every_s:
            return
        before.said_s = now_s
        so_far = state.loading_words or f"{round(now_s - before.since_s)} s"
        log.info("engine is still loading", engine=state.name, reason=state.reason, so_far=so_far)


def _say_failed(state: EngineState) -> None:
    if state.status is DeploymentStatus.FAILED:
        log.warning("engine cannot be served", engine=state.name, reason=state.reason)
