"""What a worker is told when it starts."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import orjson


@dataclass(frozen=True, slots=True)
class WorkerRole:
    """Which of the workers one is. It travels as JSON."""

    index: int
    count: int
    process: str
    """What it is called."""
    processes: list[str]
    """What all workers are called, this one included."""
    supervisor: int
    """Its process id."""
    listener: int
    """The descriptor of the listening socket."""
    redirect: int | None
    """That of the one whose clients are sent on to HTTPS; None: there is none."""
    state: str
    """The state directory."""
    replaces: bool
    """Another worker serves in its place, and leaves when this one has all agents."""
    announces: bool
    """Says where the gateway listens, and shows the first key."""
    flags: Mapping[str, Any]
    """What was given on the command line, as a nested mapping like the file."""
    config: str | None
    """The file."""

    @property
    def owner(self) -> bool:
        """Does what one worker is to do for all: backups, and deleting old segments of the audit log."""
        return self.index == 0

    def encode(self) -> bytes:
        return orjson.dumps(asdict(self), default=str)

    @classmethod
    def decode(cls, data: bytes) -> "WorkerRole":
        """Raises ValueError or TypeError for what :meth:`encode` did not make."""
        return cls(**orjson.loads(data))


def alternate_name(process: str) -> str:
    """What a worker is called that replaces the one of that name, and what the one that replaces it is."""
    return process[:-1] if process.endswith("b") else f"{process}b"
