"""One engine of an agent, for people to look at (PROTOCOL §4.7)."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from shared.protocol import limits
from shared.protocol.members import read_choice, read_objects, read_seconds, read_share, read_text


class DeploymentStatus(StrEnum):
    """Of a deployment, and of an engine as a whole."""

    LOADED = "loaded"
    LOADABLE = "loadable"
    LOADING = "loading"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class EngineState:
    """An engine that an agent was told of or has found, whether or not it serves anything.

    ``name`` is the first part of the ids of its deployments (``name/model``).
    """

    name: str
    status: DeploymentStatus
    reason: str = ""
    """Why it is failed, or what it does while it is loading; for people."""
    kind: str = ""
    """``vllm``, ``ollama``, …; empty: not known."""
    load_progress: float | None = None
    """0 to 1 while it is loading, where that can be known."""
    loading_s: float | None = None
    """For how long it has been loading."""
    load_s: float | None = None
    """How long loading takes, as measured last, or as told by the operator."""

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> "EngineState":
        """Raises :class:`~shared.protocol.errors.FrameMalformed`."""
        return cls(
            name=read_text(value, "name", most=limits.MODEL_NAME_CHARS),
            status=read_choice(value, "status", DeploymentStatus),
            reason=read_text(value, "reason", "")[: limits.REASON_CHARS],
            kind=read_text(value, "kind", "", most=limits.LABEL_CHARS),
            load_progress=read_share(value, "load_progress"),
            loading_s=read_seconds(value, "loading_s"),
            load_s=read_seconds(value, "load_s"),
        )

    @property
    def loading_words(self) -> str:
        """How far loading is: ``45 %, 12 s of about 27 s``; empty where nothing is known."""
        words = [] if self.load_progress is None else [f"{self.load_progress:.0%}".replace("%", " %")]
        if self.loading_s is not None:
            about = "" if self.load_s is None else f" of about {max(1, round(self.load_s))} s"
            words.append(f"{round(self.loading_s)} s{about}")
        return ", ".join(words)


def read_engines(value: Mapping[str, Any]) -> tuple[EngineState, ...]:
    """The member ``engines``. One whose status this version does not know is left out. Raises
    :class:`~shared.protocol.errors.FrameMalformed`."""
    known = [str(status) for status in DeploymentStatus]
    items = read_objects(value, "engines", limits.ENGINES)
    return tuple(EngineState.read(item) for item in items if item.get("status") in known)
