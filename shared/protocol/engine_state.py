"""One engine of an agent, for people to look at (PROTOCOL §4.7)."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from shared.protocol import limits
from shared.protocol.members import Name, Reason, Seconds, Share


class DeploymentStatus(StrEnum):
    """The status of a deployment, or of an engine as a whole."""

    LOADED = "loaded"
    LOADABLE = "loadable"
    LOADING = "loading"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class EngineState:
    """An engine that an agent was given or has found, whether or not it serves anything.

    ``name`` is the first part of the ids of its deployments (``name/model``).
    """

    name: Name
    status: DeploymentStatus
    reason: Reason = ""
    """Why it is failed, or what it does while it is loading; for people."""
    kind: Annotated[str, Field(max_length=limits.LABEL_CHARS)] = ""
    """``vllm``, ``ollama``, …; empty: not known."""
    load_progress: Share | None = None
    """0 to 1 while it is loading, where that can be known."""
    loading_s: Seconds | None = None
    """For how long it has been loading."""
    load_s: Seconds | None = None
    """How long loading takes, as measured last, or as the operator says."""

    @property
    def loading_words(self) -> str:
        """How far loading is: ``45 %, 12 s of about 27 s``; empty where nothing is known."""
        words = [] if self.load_progress is None else [f"{self.load_progress:.0%}".replace("%", " %")]
        if self.loading_s is not None:
            about = "" if self.load_s is None else f" of about {max(1, round(self.load_s))} s"
            words.append(f"{round(self.loading_s)} s{about}")
        return ", ".join(words)
