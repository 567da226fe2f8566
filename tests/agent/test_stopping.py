"""How an agent lets go of its engines."""

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from agent.engines.command.engine import CommandBackend, CommandSettings
from agent.engines.process import EngineEnd
from agent.engines.settings import EngineSettings
from agent.stopping import Stop, close_all, listen_for_signals
from tests.agent.support.canned import until


class Unwilling:
    """The process of an engine that ends only once it is hurried."""

    def __init__(self) -> None:
        self.on_progress: Any = None
        self.asked = False
        self.hurried = asyncio.Event()

    async def launch(self, *given: Any) -> "Unwilling":
        return self

    async def ended(self) -> EngineEnd:
        await asyncio.Event().wait()
        raise AssertionError

    async def stop(self) -> None:
        self.asked = True
        await self.hurried.wait()

    def hurry(self) -> None:
        self.hurried.set()


async def started(process: Unwilling) -> CommandBackend:
    engine = EngineSettings(url="http://h", name="e", models=("m",))
    settings = CommandSettings(command=("serve",), port=1, stop_s=300.0)
    backend = CommandBackend(engine, settings, launch=process.launch)
    await backend.start()
    await until(lambda: backend._process is process)
    return backend


async def test_engines_that_take_their_time_to_end_are_ended_by_a_second_signal(no_leaks: None) -> None:
    process, stop = Unwilling(), Stop()
    backend = await started(process)
    stop.ask()
    with structlog.testing.capture_logs() as logs:
        closing = asyncio.ensure_future(close_all([backend], stop))
        await until(lambda: process.asked)
        assert not process.hurried.is_set()
        stop.ask()
        await closing
    assert [(entry["event"], entry["engines"]) for entry in logs if "engines" in entry] == [
        ("ending the engines, a second signal ends them at once", ["e"])
    ]


async def test_engines_are_not_waited_for_where_two_signals_came_before(no_leaks: None) -> None:
    process, stop = Unwilling(), Stop()
    backend = await started(process)
    stop.ask()
    stop.ask()
    await close_all([backend], stop)
    assert process.asked


@pytest.fixture
def hangup() -> Iterator[None]:
    """What SIGHUP does is the same afterwards."""
    before = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangup")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_signal_asks_the_agent_to_stop(number: signal.Signals) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    asked = asyncio.Event()
    listen_for_signals(asked.set)
    try:
        os.kill(os.getpid(), number)
        await until(asked.is_set)
    finally:
        for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            asyncio.get_running_loop().remove_signal_handler(each)


@pytest.mark.usefixtures("hangup")
async def test_an_agent_that_was_started_by_nohup_outlives_its_terminal() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    listen_for_signals(lambda: None)
    try:
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        for each in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(each)
