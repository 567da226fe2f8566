"""The backend as the agent uses it: what it offers follows the engine."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
import structlog

from agent.engines import hang, restart
from agent.engines.backend import BackendError, BackendFailed, BackendTimeout, BackendUnreachable
from agent.engines.hang import LifeSigns
from agent.engines.http.interrupted import InterruptionDetector
from agent.engines.http.openai import BUSY_SILENCE_S, NO_MODELS, EngineSettings, OpenAIHTTPBackend
from shared.protocol.engine_state import EngineState
from shared.protocol.messages import DeploymentStatus, RequestHead
from tests.agent.support.canned import Response, added, asked, canned, once, read, until
from tests.agent.support.http_backend import backend
from tests.support.scripted_engine import Fault, Habit, Script, ScriptedEngine

BODY = orjson.dumps({"model": "scripted", "messages": [{"role": "user", "content": "hi"}]})
HEAD = RequestHead(
    "e/scripted", "POST", "/v1/chat/completions", (("content-type", "application/json"),), "scripted", "r"
)


async def ask(made: OpenAIHTTPBackend) -> int:
    async with asked(made, HEAD, once(BODY)) as response:
        await read(response)
        return response.status


async def test_a_started_backend_knows_its_engine(no_leaks: None) -> None:
    async with ScriptedEngine(models=("a", "b")) as engine, backend(engine.url) as made:
        assert [deployment.id for deployment in made.deployments()] == ["e/a", "e/b"]
        assert {deployment.slots for deployment in made.deployments()} == {8}
        assert made.deployments()[0].context_tokens == 4096
        assert (made.kind, made.engine().kind) == ("generic", "generic")
        assert await ask(made) == 200


async def test_an_engine_that_is_not_there_yet_is_no_error(no_leaks: None) -> None:
    async with backend("http://127.0.0.1:9") as made:
        assert made.deployments() == ()
        assert made.engine().kind == "", "nobody knows"
        with pytest.raises(BackendUnreachable):
            await ask(made)


async def test_why_an_engine_is_not_served_is_known_and_each_change_of_it_told(no_leaks: None) -> None:
    engine = ScriptedEngine()
    await engine.start()
    port = engine.port
    await engine.close()
    async with backend(engine.url) as made:
        changes: list[EngineState] = []
        made.subscribe(lambda: changes.append(made.engine()))
        assert made.engine().status is DeploymentStatus.FAILED
        assert f"nobody listens at 127.0.0.1 port {port}" in made.engine().reason
        await made.refresh()
        assert changes == []
        async with canned(b"HTTP/1.1 500 Oh\r\ncontent-length: 0\r\n\r\n", close=True, port=port):
            await made.refresh()
            await made.refresh()
        assert [change.reason for change in changes] == ["the engine is not well (/v1/models answers 500)"]


async def test_an_engine_that_says_it_is_loading_is_loading(no_leaks: None) -> None:
    body = b'{"error":{"message":"Loading model","code":503}}'
    answer = b"HTTP/1.1 503 Unavailable\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
    async with canned(answer, close=True) as server, backend(server.url) as made:
        assert made.engine() == EngineState("e", DeploymentStatus.LOADING, "the engine is loading its model")


async def test_an_engine_without_models_says_so(no_leaks: None) -> None:
    async with ScriptedEngine(models=()) as engine, backend(engine.url) as made:
        assert made.engine().reason == NO_MODELS
    async with ScriptedEngine(models=("a",)) as engine:
        made = OpenAIHTTPBackend(EngineSettings(url=engine.url, name="e", models=("b",), refresh_s=3600))
        await made.start()
        assert made.engine().reason == "the engine lists none of the models named for it (b)"
        await made.close()


async def test_an_engine_whose_kind_is_not_known_to_continue_answers_says_which_setting_there_is() -> None:
    settings = EngineSettings(url="", name="e", refresh_s=3600)
    async with ScriptedEngine() as engine:
        for continues in (None, {}, {"chat": "prefill"}):
            made = OpenAIHTTPBackend(replace(settings, url=engine.url, continues=continues))
            with structlog.testing.capture_logs() as logs:
                await made.start()
                await made.refresh()
            await made.close()
            said = [line for line in logs if "is not known to continue" in line["event"]]
            assert len(said) == (1 if continues is None else 0)
            assert all("TRUNKLINE_AGENT_CONTINUES=chat=prefill" in line["hint"] for line in said)


async def test_a_change_is_told_once_and_no_change_not_at_all() -> None:
    async with ScriptedEngine() as engine, backend(engine.url) as made:
        changes: list[int] = []
        made.subscribe(lambda: changes.append(1))
        await made.refresh()
        assert changes == []
        engine.waiting = 3
        await made.refresh()
        assert changes == [1]
        assert made.deployments()[0].waiting == 3


async def test_a_failed_request_makes_it_look_at_once_and_again_when_the_engine_is_back() -> None:
    engine = ScriptedEngine()
    await engine.start()
    port = engine.port
    async with backend(engine.url) as made:
        changed = asyncio.Event()
        made.subscribe(changed.set)
        await engine.close()
        with pytest.raises(BackendError):
            await ask(made)
        await changed.wait()
        assert made.deployments()[0].status is DeploymentStatus.FAILED
        changed.clear()
        async with ScriptedEngine(port=port):
            await made.refresh()
            assert changed.is_set()
            assert made.deployments()[0].status is DeploymentStatus.LOADED
            assert await ask(made) == 200


async def test_an_unwell_engine_is_not_offered() -> None:
    async with ScriptedEngine() as engine, backend(engine.url) as made:
        engine.healthy = False
        await made.refresh()
        assert made.deployments()[0].status is DeploymentStatus.FAILED
        assert "503" in made.deployments()[0].reason


STREAM = orjson.dumps(orjson.loads(BODY) | {"stream": True})


@asynccontextmanager
async def streaming(made: OpenAIHTTPBackend, got: bytearray) -> AsyncIterator["asyncio.Task[None]"]:
    """A streamed answer that runs; its bytes go to ``got``."""

    async def carry() -> None:
        async with asked(made, HEAD, once(STREAM)) as response:
            await response.stream_to(lambda piece: added(got, piece))

    task = asyncio.create_task(carry())
    try:
        await until(lambda: got or task.done())
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_looks_while_a_stream_runs_leave_an_engine_alone_that_they_would_interrupt(
    no_leaks: None,
) -> None:
    engine = ScriptedEngine(habits=[Habit.INTERRUPTS], default=Script(fault=Fault.STALL, after=3))
    async with engine, backend(engine.url) as made:
        assert (made.kind, made.deployments()[0].slots) == ("llama-cpp-python", 1)
        before, asked = made.deployments(), len(engine.stats.requests)
        async with streaming(made, bytearray()) as task:
            for _ in range(5):
                await made.refresh()
            assert not task.done()
        assert len(engine.stats.requests) == asked + 1
        assert engine.stats.interrupted == 0
        assert made.deployments() == before
        await made.refresh()
        assert made.deployments() == before


async def test_a_look_while_an_answer_is_generated_does_not_take_its_engine_for_lost() -> None:
    engine = ScriptedEngine(habits=[Habit.INTERRUPTS])
    async with engine, backend(engine.url) as made:
        engine.default = Script(fault=Fault.HANG)
        running = asyncio.create_task(ask(made))
        await until(lambda: engine.stats.running)
        for _ in range(3):
            await made.refresh()
        assert made.deployments()[0].status is DeploymentStatus.LOADED
        assert engine.stats.requests.count("GET /v1/models") == 1
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("finish", ["null", '"stop"'])
def test_the_mark_of_an_interrupted_stream_is_seen_however_it_is_cut(finish: str) -> None:
    said = b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":%b}]}\n\n' % finish.encode()
    data = said + b"data: [DONE]\n\n"
    for cut in range(1, len(data)):
        response = Response()
        detector = InterruptionDetector(response)
        detector.on_response(200, (("content-type", "text/event-stream"),))
        with pytest.raises(BackendFailed) if finish == "null" else nullcontext():
            for piece in (data[:cut], data[cut:]):
                detector.on_body(piece)
        assert b"".join(response._pieces).startswith(said)
        assert (b"[DONE]" in b"".join(response._pieces)) == (finish != "null")


async def test_a_stream_that_somebody_else_interrupts_is_no_whole_answer() -> None:
    engine = ScriptedEngine(habits=[Habit.INTERRUPTS], default=Script(fault=Fault.STALL, after=3))
    async with engine, backend(engine.url) as made, backend(engine.url) as other:
        got = bytearray()
        engine.default = Script(fault=Fault.STALL, after=3)
        async with streaming(made, got) as task:
            await until(lambda: got.count(b"data:") >= 4)
            await other.close()
            async with backend(engine.url):
                with pytest.raises(BackendFailed, match="somebody else"):
                    await task
        assert engine.stats.interrupted == 1
        assert got.endswith(b"\n\n")
        assert b"[DONE]" not in got


async def test_its_own_end_is_passed_on() -> None:
    async with ScriptedEngine(habits=[Habit.INTERRUPTS]) as engine, backend(engine.url) as made:
        got = bytearray()
        async with streaming(made, got) as task:
            await task
        assert got.endswith(b"data: [DONE]\n\n")


async def test_an_engine_that_tells_of_its_load_is_asked_for_it_while_it_works() -> None:
    engine = ScriptedEngine(default=Script(fault=Fault.STALL, after=3))
    async with engine, backend(engine.url) as made, streaming(made, bytearray()):
        engine.waiting = 7
        await made.refresh()
        assert made.deployments()[0].waiting == 7


async def test_a_question_left_unanswered_while_requests_run_shows_a_busy_engine_until_it_is_silent_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = ScriptedEngine(default=Script(fault=Fault.STALL, after=3))
    async with engine, backend(engine.url) as made:
        loop = asyncio.get_running_loop()

        async def unanswered(path: str, method: str, body: bytes) -> None:
            raise BackendTimeout("the engine fell silent")

        monkeypatch.setattr(made._client, "ask", unanswered)
        async with streaming(made, bytearray()):
            for _ in range(5):
                await made.refresh()
            assert made.deployments()[0].status is DeploymentStatus.LOADED
            now_s = loop.time()
            monkeypatch.setattr(loop, "time", lambda: now_s + BUSY_SILENCE_S + 1.0)
            for _ in range(2):
                await made.refresh()
            monkeypatch.undo()
            assert made.deployments()[0].status is DeploymentStatus.FAILED


async def test_its_signs_of_life_tell_questions_from_requests(no_leaks: None) -> None:
    async with ScriptedEngine() as engine, backend(engine.url) as made:
        asked_s = made.life_signs().heard_s
        assert asked_s > 0
        assert made.life_signs() == LifeSigns(heard_s=asked_s)
        await ask(made)
        answered = made.life_signs()
        assert (answered.worked_s, answered.running) == (answered.heard_s, 0)
        assert answered.heard_s > asked_s
        await engine.close()
        for unanswered in (1, 2):
            await made.refresh()
            assert made.life_signs().unanswered == unanswered
        assert not made.serves()


async def test_while_it_is_restarted_nothing_is_offered_and_what_it_works_on_is_given_up() -> None:
    async with ScriptedEngine() as engine, backend(engine.url) as made:
        engine.default = Script(tokens=1000, tokens_per_s=5)
        async with asked(made, HEAD, once(STREAM)) as response:
            await until(lambda: engine.stats.running)
            assert (made.life_signs().running, made.serves()) == (1, True)
            made.begin_restart("the engine hangs")
            with pytest.raises(BackendFailed, match="the engine hangs"):
                await read(response)
        state = made.deployments()[0]
        assert (state.status, state.reason) == (DeploymentStatus.FAILED, "the engine hangs")
        assert (made.engine().status, made.engine().reason) == (DeploymentStatus.FAILED, "the engine hangs")
        await made.end_restart()
        assert made.deployments()[0].status is DeploymentStatus.LOADED


async def test_a_stopped_engine_is_restarted_by_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hang, "LOOK_S", 0.01)
    monkeypatch.setattr(restart, "LOOK_S", 0.01)
    done = tmp_path / "done"
    async with ScriptedEngine() as engine:
        settings = EngineSettings(
            url=engine.url, name="e", restart=("touch", str(done)), hung_s=0.05, refresh_s=0.01
        )
        made = OpenAIHTTPBackend(settings)
        await made.start()
        states: list[str] = []
        made.subscribe(lambda: states.append(made.engine().reason))
        port = engine.port
        await engine.close()
        await until_real(done.exists)
        async with ScriptedEngine(port=port):
            await until_real(lambda: made.engine().status is DeploymentStatus.LOADED)
        assert any(state.endswith("(it is being restarted)") for state in states)
        await made.close()


async def until_real(condition: Callable[[], object]) -> None:
    """Processes and servers take time of the machine."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
