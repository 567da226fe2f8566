"""TorchServe itself behind an agent, asked at its own paths through the gateway.

The packages are installed beside, into ``tests/.cache/torchserve``, by ``tests/run engines``; it needs Java.
"""

import asyncio
import os
import shutil
import signal
import subprocess
import time
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from shared.process.ports import free_port
from tests.support.engine_site import EngineSite
from tests.support.processes import House, fetch, until

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
PLACE = ROOT / "tests" / ".cache" / "torchserve"
PYTHON = PLACE / "bin" / "python"
PACKAGES = ("torchserve==0.12.0", "torch-model-archiver==0.12.0", "torch", "numpy", "pyyaml")
INSTALL_S = 1200
START_S = 240.0
MODEL = "backwards"
BINARY = {"content-type": "application/octet-stream"}

HANDLER = """
import os, time
from ts.handler_utils.utils import send_intermediate_predict_response


def handle(data, context):
    answers = []
    for row in data or []:
        body = bytes(row.get("data") or row.get("body"))
        if body == b"slow":
            open(os.path.join(os.environ["TEMP"], "begun"), "w").close()
            time.sleep(60)
        if body == b"stream":
            for piece in ("one ", "two "):
                send_intermediate_predict_response([piece], context.request_ids, "more", 200, context)
        answers.append("three" if body == b"stream" else body[::-1])
    return answers
"""


@pytest.fixture(scope="module")
def installed() -> Path:
    """The directory of an environment with TorchServe."""
    if shutil.which("java") is None:
        pytest.skip("TorchServe needs Java")
    if not PYTHON.exists():
        if os.environ.get("TRUNKLINE_TEST_ENGINES") != "full":
            pytest.skip("tests/run engines installs TorchServe")
        venv.create(PLACE, with_pip=True)
    if subprocess.run([PYTHON, "-c", "import ts, torch, numpy, yaml"], capture_output=True).returncode:
        if os.environ.get("TRUNKLINE_TEST_ENGINES") != "full":
            pytest.skip("tests/run engines installs TorchServe")
        pins = ["-c", str(ROOT / "deploy" / "constraints.txt")]
        command = [str(PYTHON), "-m", "pip", "install", "-q", *pins, *PACKAGES]
        subprocess.run(command, check=True, timeout=INSTALL_S)
    return PLACE / "bin"


@dataclass(frozen=True)
class RunningTorchServe:
    url: str
    management: str
    """The URL of its management API, which lists its models."""
    process_group: int
    directory: Path


def healthy(url: str) -> bool:
    try:
        return bool(fetch(f"{url}/ping")["status"] == "Healthy")
    except OSError:
        return False


@pytest.fixture(scope="module")
def server(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningTorchServe]:
    directory = tmp_path_factory.mktemp("torchserve")
    (directory / "store").mkdir()
    (directory / "handler.py").write_text(HANDLER)
    named = ["--model-name", MODEL, "--version", "1.0", "--handler", "handler.py", "--export-path", "store"]
    subprocess.run([installed / "torch-model-archiver", *named], check=True, cwd=directory, timeout=120)
    ports = [free_port() for _ in range(5)]
    names = ("inference_address", "management_address", "metrics_address")
    lines = [f"{name}=http://127.0.0.1:{port}" for name, port in zip(names, ports, strict=False)]
    lines += [f"grpc_inference_port={ports[3]}", f"grpc_management_port={ports[4]}"]
    lines += ["default_workers_per_model=1", "disable_token_authorization=true", "number_of_netty_threads=2"]
    (directory / "config.properties").write_text("\n".join(lines))
    command = [str(installed / "torchserve"), "--start", "--foreground", "--ncs", "--model-store", "store"]
    command += ["--models", f"{MODEL}={MODEL}.mar", "--ts-config", "config.properties"]
    environment = os.environ | {"PATH": f"{installed}:{os.environ['PATH']}", "TEMP": str(directory)}
    with (directory / "server.log").open("wb") as log:
        child = subprocess.Popen(
            command, cwd=directory, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    url = f"http://127.0.0.1:{ports[0]}"
    try:
        until("TorchServe is healthy", lambda: healthy(url), START_S)
        yield RunningTorchServe(url, f"http://127.0.0.1:{ports[1]}", child.pid, directory)
    finally:
        for sign in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(child.pid, sign)
            except ProcessLookupError:
                break
            time.sleep(1)
        child.wait(10)


@pytest.fixture(scope="module")
def site(server: RunningTorchServe, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineSite]:
    directory = tmp_path_factory.mktemp("site")
    with House(directory) as house:
        gateway = house.gateway()
        key = gateway.key("tests")
        config = directory / "agent.toml"
        config.write_text(f'[[engine]]\nurl = "torchserve:{server.url}"\nmanagement = "{server.management}"')
        house.agent(gateway, None, "--config", str(config))
        house.wait_for_model(gateway, key, MODEL)
        yield EngineSite(house, gateway, key, server.url)


@pytest.mark.parametrize("method", ["POST", "PUT"])
@pytest.mark.parametrize("path", [f"/predictions/{MODEL}", f"/predictions/{MODEL}/1.0"])
async def test_bytes_pass_both_ways(site: EngineSite, path: str, method: str) -> None:
    sent = bytes(range(256)) * 2000
    async with site.ask(path, sent, BINARY, method) as response:
        assert (response.status, await response.read()) == (200, sent[::-1])


async def test_an_answer_in_pieces_passes(site: EngineSite) -> None:
    async with site.ask(f"/predictions/{MODEL}", b"stream", BINARY) as response:
        assert (response.status, await response.read()) == (200, b"one two three")


async def test_a_form_passes(site: EngineSite) -> None:
    form = (
        b'--x\r\ncontent-disposition: form-data; name="data"; filename="a.bin"\r\n'
        b"content-type: application/octet-stream\r\n\r\nabc\r\n--x--\r\n"
    )
    headers = {"content-type": "multipart/form-data; boundary=x"}
    async with site.ask(f"/predictions/{MODEL}", form, headers) as response:
        assert (response.status, await response.read()) == (200, b"cba")


async def test_errors_are_the_servers_and_cost_the_model_no_route(site: EngineSite) -> None:
    said = []
    for direct in (True, False):
        async with site.ask(f"/predictions/{MODEL}/9.9", b"x", BINARY, direct=direct) as response:
            said.append((response.status, await response.json(content_type=None)))
    assert said[0] == said[1]
    async with site.ask("/predictions/none", b"x", BINARY) as response:
        assert (response.status, (await response.json())["type"]) == (404, "ModelNotFoundException")
    async with site.ask(f"/predictions/{MODEL}", b"abc", BINARY) as response:
        assert await response.read() == b"cba"


async def test_a_server_that_is_killed_midway_is_an_error_and_gone(
    site: EngineSite, server: RunningTorchServe
) -> None:
    async def ask() -> int:
        async with site.ask(f"/predictions/{MODEL}", b"slow", BINARY) as response:
            return response.status

    task = asyncio.create_task(ask())
    await asyncio.to_thread(until, "it is sent", (server.directory / "begun").exists)
    os.killpg(server.process_group, signal.SIGKILL)
    assert await task in (502, 503)
    await asyncio.to_thread(until, "it is gone", lambda: MODEL not in site.gateway.models(site.key))
