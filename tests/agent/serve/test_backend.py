"""The backend of a model of your own over its real server process."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from agent.engines.backend import BackendUnreachable
from agent.engines.process import RestartPolicy
from agent.serve import backend as module
from agent.serve.backend import FRESH_S, SCRATCH_PREFIX, PythonBackend, PythonSettings, scratch_directory
from shared.protocol.messages import DeploymentState, DeploymentStatus, RequestHead, UsageMode
from shared.protocol.progress import Preview, Progress
from tests.agent.serve.played_models import PICTURE
from tests.agent.support.canned import Body, Response, asked, once, read

_PLAYED = "tests.agent.serve.played_models"


class Watched:
    """A backend, and how to wait for what it tells."""

    def __init__(self, name: str, **settings: object) -> None:
        spec = PythonSettings(spec=f"{_PLAYED}:{name}", devices=("cpu",))
        policy = RestartPolicy(first_s=0.05)
        self.backend = PythonBackend(spec, name="mine", restarts=policy, **settings)  # type: ignore[arg-type]
        self._news = asyncio.Event()
        self.backend.subscribe(self._news.set)

    async def until(self, status: DeploymentStatus, reason: str = "") -> tuple[DeploymentState, ...]:
        """Its deployments once the engine has a state and a reason."""
        async with asyncio.timeout(60):
            while True:
                self._news.clear()
                state = self.backend.engine()
                if state.status is status and reason in state.reason:
                    return self.backend.deployments()
                await self._news.wait()

    async def ask(self, deployment: str, path: str, body: bytes) -> tuple[int, bytes]:
        model = deployment.partition("/")[2]
        headers = (("content-length", str(len(body))),)
        head = RequestHead(deployment, "POST", path, headers, model, "r", usage=UsageMode.NONE)
        async with asked(self.backend, head, once(body)) as response:
            return response.status, await read(response)


@pytest.fixture
async def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[Watched]]:
    """Each backend is closed after the test, and leaves nothing."""
    monkeypatch.setattr(module, "memory_directory", lambda: tmp_path)
    monkeypatch.setattr(module, "SOCKET_PATH_BYTES", 107)
    made: list[Watched] = []
    yield made
    for each in made:
        await each.backend.close()
    assert os.listdir(tmp_path) == []


async def test_a_model_is_offered_under_its_names_with_its_routes_and_slots(watched: list[Watched]) -> None:
    watched.append(model := Watched("Several"))
    assert model.backend.deployments() == ()
    await model.backend.start()
    states = await model.until(DeploymentStatus.LOADED)
    assert [(state.id, state.model, state.slots, state.kind) for state in states] == [
        ("mine/one", "one", 16, "python"),
        ("mine/two", "two", 16, "python"),
    ]
    assert states[0].routes == ("classify", "any")
    assert states[0].lacks == ("classify/classify",)
    assert not states[0].continues
    status, body = await model.ask("mine/two", "/v1/classify", b"[1]")
    assert (status, body) == (200, b'{"model":"two","path":"/v1/classify","bytes":3}')


async def test_what_a_model_says_of_its_progress_reaches_the_request(watched: list[Watched]) -> None:
    watched.append(model := Watched("Working"))
    await model.backend.start()
    await model.until(DeploymentStatus.LOADED)
    headers = (("content-length", "3"), ("x-trunkline-call", "7"))
    head = RequestHead("mine/working", "POST", "/predict", headers, "working", "r")
    receiver = ProgressReceiver()
    model.backend.request(head, once(b"[1]"), receiver)
    async with asyncio.timeout(60):
        await receiver.told.wait()
    assert receiver.heard[0] == Progress(0.5, "half of it", Preview("image/jpeg", PICTURE))


class ProgressReceiver(Response):
    """A response whose progress a test reads."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[Progress] = []
        self.told = asyncio.Event()

    def on_progress(self, progress: Progress) -> None:
        self.heard.append(progress)
        self.told.set()


async def test_a_model_that_cannot_be_loaded_is_not_offered_and_tried_again(watched: list[Watched]) -> None:
    watched.append(model := Watched("Unloadable"))
    with capture_logs() as logs:
        await model.backend.start()
        states = await model.until(
            DeploymentStatus.FAILED, "load raised ValueError: no weights here (again in"
        )
    assert states == ()
    crashed = next(entry for entry in logs if entry["event"] == "engine crashed")
    assert "load raised ValueError: no weights here" in crashed["reason"]


async def test_a_class_that_is_not_there_is_given_up(watched: list[Watched]) -> None:
    watched.append(model := Watched("Missing"))
    await model.backend.start()
    await model.until(DeploymentStatus.FAILED, "has no Missing (given up)")
    with pytest.raises(BackendUnreachable, match="has no Missing"):
        model.backend.request(
            RequestHead("mine/x", "POST", "/predict", (), "x", "r"),
            Body(),
            None,  # type: ignore[arg-type]
        )


async def test_a_model_with_another_name_than_is_configured_is_not_served(watched: list[Watched]) -> None:
    watched.append(model := Watched("Echo", models=("other",)))
    await model.backend.start()
    states = await model.until(DeploymentStatus.FAILED, "the class serves echo, not other")
    assert [state.model for state in states] == ["other"]


async def test_a_killed_server_process_leaves_nothing_and_is_started_again(watched: list[Watched]) -> None:
    watched.append(model := Watched("Where"))
    await model.backend.start()
    await model.until(DeploymentStatus.LOADED)
    _, body = await model.ask("mine/where", "/predict", b"1")
    server, device = map(int, body.split())
    os.kill(server, signal.SIGKILL)
    await model.until(DeploymentStatus.FAILED)
    await model.until(DeploymentStatus.LOADED)
    assert not _lives(device)
    _, body = await model.ask("mine/where", "/predict", b"1")
    assert server not in map(int, body.split())


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_directories_that_killed_agents_left_are_removed_and_others_are_not(tmp_path: Path) -> None:
    left, fresh = tmp_path / f"{SCRATCH_PREFIX}left", tmp_path / f"{SCRATCH_PREFIX}fresh"
    for directory in (left, fresh):
        directory.mkdir()
        (directory / "p1-1").write_bytes(b"x")
    old_s = left.stat().st_mtime - 2 * FRESH_S
    os.utime(left, (old_s, old_s))
    with scratch_directory(tmp_path) as held:
        os.utime(held, (old_s, old_s))
        assert not left.exists()
        with scratch_directory(tmp_path) as other:
            assert held.exists()
            assert other != held
    assert sorted(path.name for path in tmp_path.iterdir()) == [fresh.name]
