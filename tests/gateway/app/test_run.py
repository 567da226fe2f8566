import asyncio
import os
import signal
import threading
from pathlib import Path

from gateway.app import run
from gateway.runtime.config import load
from gateway.storage import Store


async def test_the_loop_turns_while_it_is_told_where_clients_connect(tmp_path: Path) -> None:
    """Whoever tells it asks the store, which may hang."""
    asked, told = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def announce(url: str) -> None:
        loop.call_soon_threadsafe(told.set)
        asked.wait(30.0)

    settings = load({"listen": "127.0.0.1:0"}, None, {}).settings
    with Store.open(tmp_path / "state") as store:
        running = asyncio.create_task(run.serve(settings, lambda: settings, store, announce, None))
        async with asyncio.timeout(30.0):
            await told.wait()
        asked.set()
        os.kill(os.getpid(), signal.SIGTERM)
        await running
