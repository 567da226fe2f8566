"""The parts of long work are made from the settings."""

from pathlib import Path

import pytest

from gateway.app.jobs import make_objects
from gateway.runtime.config import Settings
from gateway.runtime.config.jobs import JobsTable
from gateway.storage import Store


@pytest.mark.parametrize("address", [None, "file"])
async def test_bytes_lie_where_the_settings_say(tmp_path: Path, address: str | None) -> None:
    elsewhere = tmp_path / "elsewhere"
    url = None if address is None else f"file://{elsewhere}"
    store = Store.open(tmp_path / "state")
    settings = Settings(jobs=JobsTable(objects=url))
    opener = make_objects(settings, store)
    directory = store.state_dir / "objects" if url is None else elsewhere
    assert not directory.exists()
    await (await opener()).put_bytes("jobs/j/body", b"{}")
    assert (directory / "jobs" / "j" / "body").read_bytes() == b"{}"
    store.close()
