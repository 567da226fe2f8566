"""The health check of the images: a gateway answers, an agent holds its state directory."""

import os
import socket
import ssl
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from deploy.healthcheck import agent_runs, gateway_answers, main
from shared.link.state_directory import LOCK_FILE
from shared.process.file_lock import FileLock
from shared.process.ports import free_port
from tests.support.threaded_server import served_in_thread
from tests.support.tls import make_certificate


class _Site(BaseHTTPRequestHandler):
    status = 200
    body = b""

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == "/healthz" else 404)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    server = HTTPServer(("127.0.0.1", 0), _Site)
    with served_in_thread(server):
        yield server.server_port


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_gateway_that_answers_is_well(port: int, host: str) -> None:
    environment = {"TRUNKLINE_GATEWAY_LISTEN": f"{host}:{port}"}
    assert gateway_answers(environment)
    assert main(["gateway"], environment) == 0


def test_a_gateway_that_answers_otherwise_or_not_at_all_is_not(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Site, "status", 503)
    assert not gateway_answers({"TRUNKLINE_GATEWAY_LISTEN": f"127.0.0.1:{port}"})
    assert main(["gateway"], {"TRUNKLINE_GATEWAY_LISTEN": f"127.0.0.1:{free_port()}"}) == 1


class _TlsServer(HTTPServer):
    """Ends TLS, too. One that ``closes`` ends connections once TLS is agreed on."""

    def __init__(self, directory: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Site)
        self.closes = False
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(*make_certificate(directory))

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        return self._tls.wrap_socket(connection, server_side=True), address

    def verify_request(self, request: Any, client_address: Any) -> bool:
        return not self.closes


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[_TlsServer]:
    server = _TlsServer(tmp_path)
    with served_in_thread(server):
        yield server


@pytest.mark.parametrize("more", [{}, {"TRUNKLINE_GATEWAY_TLS__CERT": "tls.crt"}])
def test_a_gateway_s_certificate_may_be_in_its_environment_or_in_a_file(
    secured: _TlsServer, more: dict[str, str]
) -> None:
    environment = {"TRUNKLINE_GATEWAY_LISTEN": f"127.0.0.1:{secured.server_port}", **more}
    assert gateway_answers(environment)


def test_a_gateway_that_wants_certificates_of_clients_is_well(
    secured: _TlsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {"TRUNKLINE_GATEWAY_LISTEN": f"127.0.0.1:{secured.server_port}"}
    monkeypatch.setattr(_Site, "status", 403)
    assert not gateway_answers(environment)
    monkeypatch.setattr(_Site, "body", b'{"error": {"code":"client_certificate_required"}}')
    assert gateway_answers(environment)
    secured.closes = True
    assert gateway_answers(environment)


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="only Linux lists its locks in a file")
def test_an_agent_is_well_while_it_holds_its_state(tmp_path: Path) -> None:
    environment = {"TRUNKLINE_AGENT_STATE": str(tmp_path)}
    assert main(["agent"], environment) == 1
    lock = FileLock(tmp_path / LOCK_FILE)
    assert not agent_runs(environment)
    assert lock.try_take(exclusive=True)
    assert main(["agent"], environment) == 0
    os.close(lock.fileno())
    assert not agent_runs(environment)


def test_without_saying_of_what_it_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([], {}) == 2
    assert "gateway|agent" in capsys.readouterr().err
