"""MLServer, which speaks KServe's protocol, behind an agent: asked with Triton's client and plain HTTP.

The packages are installed beside, into ``tests/.cache/mlserver``, by ``tests/run engines``.
"""

import json
import os
import subprocess
import sys
import urllib.request
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.process.ports import free_port
from tests.support.processes import House, fetch

pytestmark = pytest.mark.engine

PLACE = Path(__file__).parents[1] / ".cache" / "mlserver"
PYTHON = PLACE / "bin" / "python"
INSTALL_S = 600

MODEL = """
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse


class Doubled(MLModel):
    async def load(self):
        return True

    async def predict(self, payload):
        values = NumpyCodec.decode_input(payload.inputs[0])
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("y", values * 2)])
"""

CLIENT = """
import json, sys
import numpy
import tritonclient.http as triton

url, key, model = sys.argv[1:]
headers = {"authorization": f"Bearer {key}"}
client = triton.InferenceServerClient(url)
tensor = triton.InferInput("x", [2, 3], "FP32")
values = numpy.arange(6, dtype=numpy.float32).reshape(2, 3)
tensor.set_data_from_numpy(values, binary_data=False)
outputs = [triton.InferRequestedOutput("y", binary_data=False)]
answer = client.infer(model, [tensor], outputs=outputs, headers=headers)
try:
    client.infer("nothing", [tensor], headers=headers)
    refusal = ""
except triton.InferenceServerException as error:
    refusal = error.message()
said = {
    "live": client.is_server_live(),
    "ready": client.is_server_ready(),
    "model_ready": client.is_model_ready(model, headers=headers),
    "server": client.get_server_metadata(headers=headers)["name"],
    "metadata": client.get_model_metadata(model, headers=headers)["name"],
    "index": [each["name"] for each in client.get_model_repository_index(headers=headers)],
    "doubled": bool((answer.as_numpy("y") == 2 * values).all()),
    "refusal": refusal,
}
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def python() -> str:
    """The interpreter of an environment with MLServer and Triton's client."""
    if not PYTHON.exists():
        if os.environ.get("TRUNKLINE_TEST_ENGINES") != "full":
            pytest.skip("tests/run engines installs MLServer")
        venv.create(PLACE, with_pip=True)
    if subprocess.run([PYTHON, "-c", "import mlserver, tritonclient.http"], capture_output=True).returncode:
        packages = ("mlserver", "tritonclient[http]")
        done = subprocess.run([PYTHON, "-m", "pip", "install", "-q", *packages], timeout=INSTALL_S)
        if done.returncode:
            pytest.skip("MLServer cannot be installed here")
    return str(PYTHON)


@pytest.fixture(scope="module")
def server(python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where MLServer listens, with the models ``double`` and ``spare``."""
    directory = tmp_path_factory.mktemp("mlserver")
    (directory / "doubled.py").write_text(MODEL)
    ports = {f"{name}_port": free_port() for name in ("http", "grpc", "metrics")}
    (directory / "settings.json").write_text(
        json.dumps({"host": "127.0.0.1", "parallel_workers": 0, **ports})
    )
    for name in ("double", "spare"):
        (directory / name).mkdir()
        settings = {"name": name, "implementation": "doubled.Doubled", "parameters": {"version": "1"}}
        (directory / name / "model-settings.json").write_text(json.dumps(settings))
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(directory), "HOME": str(directory)}
    log = (directory / "mlserver.log").open("w")
    command = [python, "-m", "mlserver.cli.main", "start", str(directory)]
    child = subprocess.Popen(command, env=environment, cwd=directory, stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{ports['http_port']}"
    finally:
        child.terminate()
        child.wait(30)
        log.close()


def _ready(url: str) -> bool:
    try:
        states = [each["state"] for each in fetch(f"{url}/v2/repository/index", body={})]
    except OSError:
        return False
    return states == ["READY", "READY"]


def test_triton_client_works_with_the_gateways_url(python: str, server: str, tmp_path: Path) -> None:
    with House(tmp_path) as house:
        house.children.wait_until(lambda: _ready(server), "MLServer is ready", 120)
        with urllib.request.urlopen(f"{server}/v2/repository/models/spare/unload", b"", 30) as response:
            assert response.status == 200
        gateway = house.gateway()
        key = gateway.key("tests")
        house.agent(gateway, f"kserve:{server}")
        house.wait_for_model(gateway, key, "double")
        for model in ("double", "spare"):  # the second is loaded for the request
            arguments = (gateway.url.removeprefix("http://"), key, model)
            done = subprocess.run(
                [python, "-c", CLIENT, *arguments], capture_output=True, text=True, timeout=60
            )
            assert done.returncode == 0, done.stderr
            said = json.loads(done.stdout)
            assert sorted(said.pop("index")) == ["double", "spare"]
            assert "nothing" in said.pop("refusal")
            assert said == {
                "live": True,
                "ready": True,
                "model_ready": True,
                "server": "trunkline",
                "metadata": model,
                "doubled": True,
            }
        index = fetch(f"{server}/v2/repository/index", body={})
        assert [each["state"] for each in index] == ["READY", "READY"]


def test_the_connectors_own_tests_pass_against_it(server: str) -> None:
    tests = str(Path(__file__).with_name("test_kserve.py"))
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", tests]
    done = subprocess.run(
        command,
        env=os.environ | {"TRUNKLINE_TEST_KSERVE": server},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout
