"""COMMAND and RESULT: what a gateway wants of one managed deployment (PROTOCOL §4.8)."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field

from shared.protocol.members import Count, Flag, Name, Payload, Reason


class CommandVerb(StrEnum):
    LOAD = "load"
    UNLOAD = "unload"


@dataclass(frozen=True, slots=True)
class Command(Payload):
    """COMMAND (PROTOCOL §4.8): what the gateway wants of one managed deployment."""

    id: Count
    verb: CommandVerb
    deployment: Name
    epoch: Count | None = None
    """Of the process that may send such commands for all of the gateway's; None: there is no such right."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON object; ``epoch`` only where there is one."""
        said: dict[str, Any] = {"id": self.id, "verb": self.verb, "deployment": self.deployment}
        return said if self.epoch is None else said | {"epoch": self.epoch}


@dataclass(frozen=True, slots=True)
class CommandResult(Payload):
    """RESULT (PROTOCOL §4.8): whether the agent takes the command of that ``id`` on; ``error``: why not."""

    id: Count
    ok: Annotated[Flag, Field(default=False)]
    error: Reason = ""
