"""What is shown of a connected agent."""

from collections.abc import Mapping
from dataclasses import dataclass

from shared.protocol.engine_state import EngineState
from shared.protocol.messages import AgentStatus, DeploymentState, GpuState


@dataclass(frozen=True, slots=True)
class AgentInfo:
    """A connected agent, for people to look at."""

    name: str
    connected_s: float
    """On the gateway's monotonic clock."""
    status: AgentStatus
    draining: bool
    labels: Mapping[str, str]
    rtt_s: float | None
    streams: int
    deployments: tuple[DeploymentState, ...]
    gpus: tuple[GpuState, ...]
    engines: tuple[EngineState, ...] = ()
    """Empty for agents of earlier versions."""
    reason: str = ""
    """Why it serves nothing."""
    software: str = ""
    """Program and version, as it says."""
