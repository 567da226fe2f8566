"""Refuses commands of a process of the gateway that no longer has the right to send them (PROTOCOL §4.8)."""

from collections.abc import Callable

import structlog

from shared.protocol.messages import Command, CommandResult

log = structlog.get_logger("link.command_fence")


class CommandFence:
    """One for all sessions of an agent: the process that has taken over tells it so by another session than
    the one before it."""

    def __init__(self, carry_out: Callable[[Command], CommandResult]) -> None:
        """``carry_out`` begins a command, or says why not."""
        self._carry_out = carry_out
        self._epoch = 0
        """The highest that any command had."""

    def carry_out(self, command: Command) -> CommandResult:
        """Begin a command, unless another process has sent one by a later right."""
        epoch = command.epoch
        if epoch is not None and epoch < self._epoch:
            log.warning("command of a former owner refused", verb=command.verb, id=command.deployment)
            return CommandResult(command.id, False, "another process of the gateway has taken over")
        if epoch is not None:
            self._epoch = epoch
        return self._carry_out(command)
