"""Commands of a process that has lost its right are refused."""

import pytest

from shared.link.command_fence import CommandFence
from shared.protocol.messages import Command, CommandResult, CommandVerb


@pytest.fixture
def carried_out() -> list[int]:
    return []


@pytest.fixture
def fence(carried_out: list[int]) -> CommandFence:
    def carry_out(command: Command) -> CommandResult:
        carried_out.append(command.id)
        return CommandResult(command.id, True)

    return CommandFence(carry_out)


def test_a_command_of_an_earlier_epoch_is_refused(fence: CommandFence, carried_out: list[int]) -> None:
    for number, epoch in enumerate((7, 7, 9, 8, 7, 9, 10)):
        result = fence.carry_out(Command(number, CommandVerb.LOAD, "d", epoch))
        assert result.ok == (number in carried_out)
        assert bool(result.error) != result.ok
    assert carried_out == [0, 1, 2, 5, 6]


def test_commands_without_epochs_are_carried_out_as_ever(fence: CommandFence, carried_out: list[int]) -> None:
    for number, epoch in enumerate((None, 7, None)):
        assert fence.carry_out(Command(number, CommandVerb.UNLOAD, "d", epoch)).ok
    assert carried_out == [0, 1, 2]
