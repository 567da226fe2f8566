"""What a gateway's settings make of the guard of its machine."""

from pathlib import Path

from gateway.app.machine import follow_machine, make_machine
from gateway.observability.metrics import Metrics
from gateway.runtime.config import Settings
from gateway.runtime.lifecycle import Lifecycle
from gateway.runtime.pressure import MemoryReading
from tests.gateway.dispatch.answers import leave
from tests.gateway.dispatch.long_answers import LONG, begins
from tests.gateway.fleet.fleet import Fleet, deployment


async def test_the_dispatcher_keeps_no_unread_answers_while_memory_is_short(tmp_path: Path) -> None:
    fleet = Fleet()
    machine = make_machine(Settings(), tmp_path, Metrics(), Lifecycle())
    follow_machine(fleet.dispatcher, machine)
    assert fleet.dispatcher.unread.roomy()
    machine.pressure.read([MemoryReading(used_bytes=99, limit_bytes=100)])
    assert not fleet.dispatcher.unread.roomy()


async def test_engines_that_wait_for_readers_go_on_once_memory_is_no_longer_short(tmp_path: Path) -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment(slots=2))
    machine = make_machine(Settings(), tmp_path, Metrics(), Lifecycle())
    follow_machine(fleet.dispatcher, machine)
    machine.pressure.read([MemoryReading(used_bytes=99, limit_bytes=100)])
    clients = [fleet.submit(), fleet.submit()]
    assert all(begins(fleet, engine) < LONG for engine in agent.streams)
    assert fleet.dispatcher.slow_readers.held_up == 2
    machine.pressure.read([MemoryReading(used_bytes=1, limit_bytes=100)])
    fleet.settle()
    assert fleet.dispatcher.slow_readers.held_up == 0
    leave(fleet, *clients)
