"""The guard of the machine, with the slices of the settings that it gets, and who follows it."""

from pathlib import Path

from gateway.dispatch.dispatcher import Dispatcher
from gateway.observability.metrics import Metrics
from gateway.runtime.config import Settings
from gateway.runtime.disks import written_places
from gateway.runtime.lifecycle import Lifecycle
from gateway.runtime.machine import MachineGuard


def make_machine(settings: Settings, state_dir: Path, metrics: Metrics, lifecycle: Lifecycle) -> MachineGuard:
    """Create it on the event loop that it guards."""
    written = written_places(settings, state_dir)
    return MachineGuard(metrics, settings.machine, lambda: lifecycle.in_flight, written)


def follow_machine(dispatcher: Dispatcher, machine: MachineGuard) -> None:
    """The dispatcher knows when memory is short, and for how long the process stood still."""
    dispatcher.admission.stood_still = machine.stills.since
    dispatcher.unread.roomy = lambda: not machine.pressure.level
    machine.pressure.when_over = dispatcher.unread.has_room_again
