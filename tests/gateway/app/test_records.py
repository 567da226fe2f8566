"""What of the machine's troubles is told to pages that follow live events."""

from pathlib import Path

import orjson

from gateway.app.records import make_events, make_records
from gateway.runtime.config import Settings
from gateway.runtime.disks import DiskRoom
from gateway.runtime.lifecycle import Lifecycle
from gateway.runtime.machine import MachineGuard
from gateway.storage import Store
from tests.gateway.fleet.fleet import Fleet


async def test_a_disk_that_runs_full_is_told_as_trouble(tmp_path: Path) -> None:
    fleet, settings = Fleet(), Settings()
    machine = MachineGuard(fleet.dispatcher.metrics, settings.machine)
    with Store.open(tmp_path / "state") as store:
        records, lifecycle = make_records(settings, fleet.dispatcher), Lifecycle()
        events = make_events(fleet.dispatcher, records, store, machine, lifecycle, "gateway", None)

        async def troubles() -> dict[str, bool]:
            pieces = events.feed.follow()
            snapshot = await anext(pieces)
            await pieces.aclose()
            told: dict[str, bool] = orjson.loads(snapshot.partition(b"data: ")[2])["troubles"]
            return told

        assert await troubles() == {}
        machine.disks.note([DiskRoom(tmp_path, free_bytes=1000, total_bytes=10**9)])
        assert await troubles() == {"disk": True}
