"""The container files carried out, and what they make run: without an engine for containers.

The steps run in directories that lie over this machine's file system (:mod:`tests.support.containerfile`).
What a base image would bring, an engine's own settings of containers, and the CUDA image are not tried.
"""

import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from shared.process.ports import free_port
from tests.support import containerfile
from tests.support.containerfile import Build, Stage
from tests.support.processes import START_S, House, answer_to, fetch, until

pytestmark = pytest.mark.deploy

_ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", autouse=True)
def _can_be_carried_out() -> None:
    if (reason := containerfile.unable()) is not None:
        pytest.skip(reason)


def _volume(directory: Path) -> Path:
    directory.mkdir()
    shutil.chown(directory, 10001, 10001)
    return directory


def _health(build: Build, stage: Stage, environment: dict[str, str], volumes: dict[str, Path]) -> int:
    step = stage.last("HEALTHCHECK")
    assert step is not None
    words = containerfile.Step("CMD", step.text.partition("CMD ")[2]).words
    process = build.chroot(stage, words, environment, user="10001:10001", writable=volumes)
    process.communicate(timeout=60)
    return process.returncode


def _start(
    build: Build, stage: Stage, environment: dict[str, str], volumes: dict[str, Path]
) -> subprocess.Popen[str]:
    """The image's entry point and command, as its user, with nothing writable but its volumes."""
    entry, words = stage.last("ENTRYPOINT"), stage.last("CMD")
    assert entry is not None
    assert words is not None
    command = [*entry.words, *words.words]
    return build.chroot(stage, command, environment, user="10001:10001", writable=volumes)


def test_both_images_are_built_and_serve(tmp_path: Path) -> None:
    gateways = Build(_ROOT / "deploy/Containerfile.gateway", _ROOT, _folder(tmp_path, "g")).run()
    agents = Build(_ROOT / "deploy/Containerfile.agent", _ROOT, _folder(tmp_path, "a"), DEVICE="none").run()
    assert len(gateways.log) == 4
    port = free_port()
    at = {"TRUNKLINE_GATEWAY_LISTEN": f"127.0.0.1:{port}"}
    there = {**gateways.last.environment(), **at}
    state = _volume(tmp_path / "state")
    volumes = {"/var/lib/trunkline": state, "/tmp": _folder(tmp_path, "temporary")}
    (tmp_path / "house").mkdir()
    with House(tmp_path / "house") as house:
        engine = house.engine()
        gateway = _start(gateways, gateways.last, there, volumes)
        agent: subprocess.Popen[str] | None = None
        try:
            until("healthy", lambda: _health(gateways, gateways.last, there, volumes) == 0, START_S)
            key = (state / "first-admin-key").read_text().split()[-1]
            url = f"http://127.0.0.1:{port}"
            token = fetch(f"{url}/admin/tokens", body={}, key=key)["token"]
            here = {
                **agents.last.environment(),
                "TRUNKLINE_AGENT_GATEWAY": url,
                "TRUNKLINE_AGENT_JOIN": token,
                "TRUNKLINE_AGENT_ENGINE": engine.url,
            }
            own = {
                "/var/lib/trunkline-agent": _volume(tmp_path / "agent"),
                "/tmp": volumes["/tmp"],
            }
            agent = _start(agents, agents.last, here, own)
            until("served", lambda: fetch(f"{url}/v1/models", key=key)["data"], START_S)
            assert _health(agents, agents.last, here, own) == 0
            model = fetch(f"{url}/v1/models", key=key)["data"][0]["id"]
            asked = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}
            said = fetch(f"{url}/v1/chat/completions", body=asked, key=key, timeout_s=60)
            assert said["choices"][0]["message"]["content"] == answer_to("hello", 5)
        finally:
            for process in filter(None, (agent, gateway)):
                process.send_signal(signal.SIGTERM)
                process.communicate(timeout=60)
    assert gateway.returncode == 0
    assert agent.returncode == 0
    assert _health(gateways, gateways.last, there, volumes) == 1
    assert _health(agents, agents.last, here, own) == 1
    assert {each.stat().st_uid for each in state.iterdir()} == {10001}


def _folder(directory: Path, name: str) -> Path:
    made = directory / name
    made.mkdir()
    made.chmod(0o1777)
    return made
