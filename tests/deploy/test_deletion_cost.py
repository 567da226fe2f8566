"""The hook that writes the gateway's deletion costs onto pods, at a stand-in for Kubernetes' API."""

import json
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import orjson
import pytest

from deploy import deletion_cost
from deploy.deletion_cost import ANNOTATION, NoChange, costs_of, main
from gateway.scaling.hooks import event_of
from gateway.scaling.observation import SeenReplica
from gateway.scaling.verdict import ModelVerdict, class_verdict
from tests.gateway.scheduling.scaling.facts import L4
from tests.support.threaded_server import served_in_thread
from tests.support.tls import make_certificate

_PODS = "/api/v1/namespaces/llm/pods/"


@dataclass
class _Cluster:
    """Pods, and what they were asked."""

    pods: dict[str, dict[str, str]]
    account: Path
    environ: dict[str, str] = field(default_factory=dict)
    status: int = 200

    def answer(self, path: str, headers: dict[str, str], body: bytes) -> int:
        assert path.startswith(_PODS)
        assert headers["content-type"] == "application/merge-patch+json"
        if headers["authorization"] != "Bearer secret":
            return 401
        if self.status != 200:
            return self.status
        if (pod := path.removeprefix(_PODS)) not in self.pods:
            return 404
        self.pods[pod] |= json.loads(body)["metadata"]["annotations"]
        return 200


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[_Cluster]:
    certificate, key = make_certificate(tmp_path)
    certificate.rename(tmp_path / "ca.crt")
    (tmp_path / "namespace").write_text("llm")
    (tmp_path / "token").write_text("secret\n")
    found = _Cluster({"a": {"other": "stays"}, "b": {}, "c": {}}, tmp_path)

    class Api(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PATCH(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            status = found.answer(self.path, {n.lower(): v for n, v in self.headers.items()}, body)
            said = b'{"kind": "Status"}'
            self.send_response(status)
            self.send_header("content-length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Api)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(tmp_path / "ca.crt", key)
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    found.environ = {
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(server.server_port),
    }
    with served_in_thread(server):
        yield found


def _change(*agents: str) -> str:
    """As the gateway tells it; the first agent has the least remaining work."""
    replicas = [SeenReplica(each, "l4", 8, True, remaining_s=float(at)) for at, each in enumerate(agents)]
    verdict = class_verdict(L4, 1, 1, 0.0, 0.0, replicas)
    return orjson.dumps(event_of(ModelVerdict("m", "why", True, 0, 0, {"l4": verdict}), "l4", 3, 1)).decode()


def test_pods_get_the_costs_that_the_gateway_says(
    cluster: _Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """And an agent that is no pod there, but on a rented box, is left out."""
    assert main(_change("b", "rented", "a", "c"), cluster.environ, cluster.account) == 0
    assert cluster.pods["b"] == {ANNOTATION: "0"}
    assert cluster.pods["a"] == {"other": "stays", ANNOTATION: "2"}
    assert cluster.pods["c"] == {ANNOTATION: "3"}
    assert capsys.readouterr().out == "3 of 4 pods have their cost\n"


def test_what_fails_is_to_be_tried_again(cluster: _Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.status = 500
    assert main(_change("a"), cluster.environ, cluster.account) == 1
    assert "a: status 500" in capsys.readouterr().err
    (cluster.account / "token").write_text("expired")
    assert main(_change("a"), cluster.environ, cluster.account) == 1
    assert "status 401" in capsys.readouterr().err
    assert main(_change("a"), {}, cluster.account) == 1
    assert "no pod" in capsys.readouterr().err
    assert main(_change("a"), cluster.environ, cluster.account / "none") == 1
    assert "service account" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"replicas": [{"agent": "a"}]}', '{"replicas": 3}'])
def test_what_is_no_change_changes_nothing(text: str, cluster: _Cluster) -> None:
    assert main(text, cluster.environ, cluster.account) == 2
    assert all(ANNOTATION not in each for each in cluster.pods.values())


def test_costs_are_of_32_bits() -> None:
    assert costs_of({"replicas": [{"agent": "a", "cost": 2**40}]}) == {"a": 2**31 - 1}
    with pytest.raises(NoChange):
        costs_of(None)


def test_it_is_a_program_that_needs_nothing_but_python() -> None:
    """As the image has it: a file beside no package."""
    command = [sys.executable, "-I", str(deletion_cost.__file__)]
    done = subprocess.run(command, input=_change("a"), capture_output=True, text=True, env={}, timeout=60)
    assert done.returncode == 1
    assert done.stderr == "KUBERNETES_SERVICE_HOST is not set: this is no pod\n"
