"""Runs a gateway in this process: its store, its event loop, and the signals that stop and reload it."""

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

from gateway.app.app import Gateway
from gateway.app.reload import Reload
from gateway.observability.log_ring import LogRing, log_kept
from gateway.runtime.config import Settings
from gateway.runtime.garbage import young_collections_only
from gateway.runtime.machine import keep_freed_memory, make_room
from gateway.runtime.stop_signals import StopSignals
from gateway.runtime.workers.channel import SupervisorLink
from gateway.storage import Store
from shared.process.event_loop import event_loop_factory, loop_waits_briefly
from shared.speedups import collapse_pages


async def serve(
    settings: Settings,
    load: Callable[[], Settings],
    store: Store,
    announce: Callable[[str], None],
    worker: SupervisorLink | None,
    log: LogRing | None = None,
) -> None:
    """What :func:`run` does, in an event loop and with a store that are there. Raises ConfigError and
    ListenFailed."""
    stop = StopSignals(escalate=worker is None)
    say_if_few = make_room(settings.http.connections, settings.agents.max_agents)
    with stop.installed():
        gateway = Gateway(settings, store, worker, log)
        reload = Reload(
            settings, load, gateway.retune, lambda names: gateway.audit.note("settings.reload", changed=names)
        )

        def again() -> None:
            reload()
            gateway.reload_tls()

        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, again)

        if gateway.member is not None:
            gateway.member.watch(stop)

        async def started(url: str) -> None:
            await asyncio.to_thread(announce, url)  # it asks the store
            await asyncio.to_thread(collapse_pages)
            say_if_few()
            gateway.report_ready()

        await gateway.run(stop, started)


def run(
    settings: Settings,
    state_dir: Path,
    announce: Callable[[str, Store], None],
    load: Callable[[], Settings] | None = None,
    worker: SupervisorLink | None = None,
) -> None:
    """Run a gateway, or one worker of it, in this process until it is told to stop.

    ``load`` reads the settings again when SIGHUP asks for it, and may raise ConfigError; without it they
    stay as they are. ``announce`` gets the URL and the store once clients can connect. Raises ConfigError,
    StateError and ListenFailed.
    """
    keep_freed_memory()
    with (
        log_kept(settings.log.kept_bytes) as log,
        young_collections_only(),
        loop_waits_briefly(),
        Store.open(state_dir, serve=True, locked=worker is not None, address=settings.store_address) as store,
        asyncio.Runner(loop_factory=event_loop_factory()) as runner,
    ):
        load = load or (lambda: settings)
        runner.run(serve(settings, load, store, lambda url: announce(url, store), worker, log))
