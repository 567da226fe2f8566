"""The whole agent in one process: it serves, drains, and ends as it should."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
import structlog
from aiohttp import web

from agent.app import BLOCKED_QUIET_S, BLOCKED_S, Agent, BlockedLoopLog
from agent.config.sources import load
from agent.stopping import Stop, close_all
from shared.link.dialer import Rejected
from shared.process.settings import ConfigError
from shared.process.stand_stills import BEAT_S
from shared.process.watchdog import LoopWatchdog
from shared.protocol.errors import ErrorCode, HandshakeRejected
from shared.protocol.messages import AgentStatus, GpuState
from tests.agent.support.canned import until
from tests.agent.support.joined import Doorman
from tests.support.comfyui_server import ComfyUIServer
from tests.support.identities import TOKEN
from tests.support.scripted_engine import ScriptedEngine
from tests.support.tunnels import Recorder, accepting, request_head


class Running:
    """An agent, its gateway's end and its engine."""

    def __init__(self, acceptor: Doorman, stop: Stop, task: "asyncio.Task[None]") -> None:
        self.acceptor = acceptor
        self.gateway = acceptor.listener
        self.stop = stop
        self.task = task

    def ask(self, tokens: int, tokens_per_s: float = 0.0) -> Recorder:
        answer = Recorder()
        script = {"tokens": tokens, "tokens_per_s": tokens_per_s}
        body = {"model": "scripted", "stream": True, "messages": [], "script": script}
        stream = self.acceptor.tunnels[-1].endpoint.open(request_head(deployment="engine/scripted"), answer)
        stream.send_data(orjson.dumps(body))
        stream.end()
        return answer


@asynccontextmanager
async def agent_on(engine_url: str, directory: Path, **settings: Any) -> AsyncIterator[Running]:
    acceptor, stop = Doorman(), Stop()
    async with accepting(acceptor) as url:
        flags = {
            "gateway": url,
            "join": TOKEN.encode(),
            "state": directory,
            "engine": [{"url": engine_url, "name": "engine"}],
            **settings,
        }
        task = asyncio.ensure_future(Agent(load(flags, None), stop).run())
        try:
            await acceptor.listener.until("state")
            yield Running(acceptor, stop, task)
        finally:
            stop.ask()
            stop.ask()
            await asyncio.gather(task, return_exceptions=True)


async def offers(running: Running, slots: dict[str, int]) -> None:
    await until(lambda: ("slots", slots) in running.gateway.calls)


async def test_an_agent_offers_its_engine_serves_and_leaves(tmp_path: Path, no_leaks: None) -> None:
    async with ScriptedEngine() as engine, agent_on(engine.url, tmp_path, slots=7) as running:
        await offers(running, {"engine/scripted": 7})
        answer = running.ask(tokens=3)
        await answer.until("end")
        assert answer.body.endswith(b"data: [DONE]\n\n")
        running.stop.ask()
        await running.task
        assert running.gateway.names()[-1] == "session_closed"


async def test_draining_lets_running_answers_finish_and_takes_nothing_new(
    tmp_path: Path, no_leaks: None
) -> None:
    async with ScriptedEngine() as engine, agent_on(engine.url, tmp_path) as running:
        await offers(running, {"engine/scripted": 8})
        answer = running.ask(tokens=20, tokens_per_s=50)
        await answer.until("data")
        running.stop.ask()
        assert (await running.gateway.until("drain")).deadline_s == 30.0
        await offers(running, {"engine/scripted": 0})
        states = [value.status for name, value in running.gateway.calls if name == "state"]
        assert states[-1] is AgentStatus.DRAINING
        late = running.ask(tokens=1)
        assert (await late.until("reset"))[0] is ErrorCode.REFUSED
        await answer.until("end")
        assert answer.body.endswith(b"data: [DONE]\n\n")
        await running.task


async def test_a_second_signal_ends_it_at_once(tmp_path: Path, no_leaks: None) -> None:
    async with ScriptedEngine() as engine, agent_on(engine.url, tmp_path) as running:
        await offers(running, {"engine/scripted": 8})
        answer = running.ask(tokens=100_000, tokens_per_s=10)
        await answer.until("data")
        running.stop.ask()
        running.stop.ask()
        await running.task
        await answer.until("closed")
        await until(lambda: engine.stats.cancelled == 1)


async def test_a_drain_that_takes_too_long_is_cut_off(tmp_path: Path, no_leaks: None) -> None:
    async with ScriptedEngine() as engine, agent_on(engine.url, tmp_path, drain_s=0.05) as running:
        await offers(running, {"engine/scripted": 8})
        answer = running.ask(tokens=100_000, tokens_per_s=10)
        await answer.until("data")
        with structlog.testing.capture_logs() as logs:
            running.stop.ask()
            await running.task
        assert await answer.until("reset") == (ErrorCode.DRAINING, "the agent ends")
        await until(lambda: engine.stats.running == 0)
    assert [entry["event"] for entry in logs if entry.get("running") == 1] == [
        "draining, a second signal ends it at once",
        "requests cut off, the gateway moves them",
    ]


async def test_a_drain_says_how_it_goes(
    tmp_path: Path, no_leaks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.app.DRAIN_LOG_S", 0.02)
    async with ScriptedEngine() as engine, agent_on(engine.url, tmp_path) as running:
        await offers(running, {"engine/scripted": 8})
        answer = running.ask(tokens=100_000, tokens_per_s=10)
        await answer.until("data")
        with structlog.testing.capture_logs() as logs:
            running.stop.ask()
            await until(lambda: any(entry["event"] == "still draining" for entry in logs))
            running.stop.ask()
            await running.task
        assert (await answer.until("reset"))[0] is ErrorCode.DRAINING
    said = next(entry for entry in logs if entry["event"] == "still draining")
    assert (said["running"], said["at_most_s"]) == (1, 30)


async def test_an_engine_that_is_not_there_yet_is_offered_when_it_comes(
    tmp_path: Path, no_leaks: None
) -> None:
    async with ScriptedEngine() as first:
        port = first.port
    async with agent_on(f"http://127.0.0.1:{port}", tmp_path) as running, ScriptedEngine(port=port):
        await offers(running, {"engine/scripted": 8})


async def test_comfyui_that_is_found_is_offered_with_its_own_paths(tmp_path: Path, no_leaks: None) -> None:
    server = ComfyUIServer(tmp_path)
    runner = web.AppRunner(server.app())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = "http://{}:{}".format(*runner.addresses[0][:2])
    agent = Agent(load({"gateway": "http://127.0.0.1:1", "slots": 16, "find_engines": True}, None), Stop())
    try:
        await agent._found(f"comfyui:{url}", "comfyui-8188")
        await agent._found(f"comfyui:{url}", "second")
        offered = {each.model: each for each in agent._registry.state().deployments}
        slots = agent._registry.levels("a session")
    finally:
        await close_all(agent._opened, Stop())
        await runner.cleanup()
    assert {"comfyui", "comfyui-8188"} <= offered.keys()
    assert offered["comfyui"].kind == "comfyui"
    assert slots[offered["comfyui"].id] == 1


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"engine": [{"url": "http://127.0.0.1:9"}]}, "its engines are being looked at for the first time"),
        ({"find_engines": True}, "no engine is found on the usual local ports"),
        ({"find_engines": False}, "no engine is named in its settings"),
    ],
)
def test_an_agent_that_has_seen_no_engine_yet_says_why(settings: dict[str, Any], reason: str) -> None:
    agent = Agent(load({"gateway": "http://127.0.0.1:1"} | settings, None), Stop())
    assert agent._registry.state().reason.startswith(reason)


async def test_a_gateway_that_says_no_ends_the_agent(tmp_path: Path, no_leaks: None) -> None:
    acceptor = Doorman(HandshakeRejected(ErrorCode.REVOKED, "agent x was revoked"))
    async with accepting(acceptor) as url:
        flags = {"gateway": url, "join": TOKEN.encode(), "state": tmp_path, "find_engines": False}
        with pytest.raises(Rejected, match="was revoked"):
            await Agent(load(flags, None), Stop()).run()


async def test_a_proxy_whose_url_cannot_be_read_is_told_and_does_not_end_the_agent(
    tmp_path: Path, no_leaks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://[::1")
    flags = {"gateway": "https://x", "join": TOKEN.encode(), "state": tmp_path, "find_engines": False}
    stop = Stop()
    with structlog.testing.capture_logs() as logs:
        task = asyncio.ensure_future(Agent(load(flags, None), stop).run())
        await until(lambda: task.done() or any("cannot connect" in entry["event"] for entry in logs))
        stop.ask()
        stop.ask()
        await task
    assert "Invalid IPv6 URL" in next(entry["reason"] for entry in logs if "reason" in entry)


async def test_a_device_that_is_none_is_wrong_usage(tmp_path: Path) -> None:
    flags = {
        "gateway": "http://localhost:1",
        "state": tmp_path,
        "engine": [{"torch": str(tmp_path), "device": "abacus"}],
    }
    with pytest.raises(ConfigError, match="'abacus': a device is auto, cpu, cuda or cuda:NUMBER"):
        await Agent(load(flags, None), Stop()).run()


def test_the_room_for_models_is_the_gpus_memory_unless_it_is_said(tmp_path: Path) -> None:
    flags = {"gateway": "https://x", "state": tmp_path}
    agent = Agent(load(flags, None), Stop())
    assert agent._model_memory_bytes() is None
    agent._gpus.latest = (GpuState(0, "a", 80, 1), GpuState(1, "b", 24, 0))
    assert agent._model_memory_bytes() == 104
    agent._gpus.latest = ()  # they cannot be read just now
    assert agent._model_memory_bytes() == 104
    said = Agent(load(flags | {"models": {"memory": 50}}, None), Stop())
    said._gpus.latest = (GpuState(0, "a", 80, 1),)
    assert said._model_memory_bytes() == 50


def test_small_delays_are_none_of_its_business() -> None:
    watchdog = LoopWatchdog(BlockedLoopLog(), BLOCKED_S, list, 0.0)
    with structlog.testing.capture_logs() as logs:
        watchdog.look(BEAT_S, 0.0)
        watchdog.look(BEAT_S + BLOCKED_S - 0.1, 0.0)
        watchdog.look(2 * BLOCKED_S, 2 * BLOCKED_S)
    assert logs == []


def test_what_happens_soon_again_is_told_together() -> None:
    reporter = BlockedLoopLog()
    with structlog.testing.capture_logs() as logs:
        for now, lasted_s in [(0.0, 1.5), (10.0, 3.0), (20.0, 2.0)]:
            reporter.loop_turns(now, lasted_s)
            reporter.looked(now)
        reporter.looked(BLOCKED_QUIET_S)
        reporter.looked(2 * BLOCKED_QUIET_S)
    assert [(entry["times"], entry["longest_s"]) for entry in logs] == [(1, 1.5), (2, 3.0)]


def test_a_process_that_was_stopped_counts_as_well() -> None:
    watchdog = LoopWatchdog(BlockedLoopLog(), BLOCKED_S, list, 0.0)
    with structlog.testing.capture_logs() as logs:
        watchdog.look(4.0 + BEAT_S, 0.0)
        watchdog.look(4.0 + 2 * BEAT_S, 4.0 + 2 * BEAT_S)
    assert [entry["longest_s"] for entry in logs] == [4.0]
