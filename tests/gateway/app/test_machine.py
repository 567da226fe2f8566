"""What a gateway's settings make of the guard of its machine."""

from pathlib import Path

from gateway.app.machine import follow_machine, make_machine
from gateway.observability.metrics import Metrics
from gateway.runtime.config import Settings
from gateway.runtime.lifecycle import Lifecycle
from gateway.runtime.pressure import MemoryReading
from tests.gateway.fleet.fleet import Fleet


async def test_the_dispatcher_keeps_no_unread_answers_while_memory_is_short(tmp_path: Path) -> None:
    fleet = Fleet()
    machine = make_machine(Settings(), tmp_path, Metrics(), Lifecycle())
    follow_machine(fleet.dispatcher, machine)
    assert fleet.dispatcher.unread.roomy()
    machine.pressure.read([MemoryReading(used_bytes=99, limit_bytes=100)])
    assert not fleet.dispatcher.unread.roomy()
