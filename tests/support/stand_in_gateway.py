"""Stands in for a gateway, or for something else at its address, in what a doctor asks of one.

It runs in this process, with answers that each test chooses."""

import ipaddress
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import orjson
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.support.threaded_server import served_in_thread

READY: Mapping[str, Any] = {
    "/readyz": {"status": "ready", "agents": 1},
    "/healthz": {"status": "ok"},
    "/v1/models": {"object": "list", "data": [{"id": "m", "routes": ["chat"]}]},
    "/admin/processes": {"processes": []},
    "/version": {"name": "trunkline", "version": "0.0.1"},
}


@dataclass
class StandIn:
    """What it answers, by path without the query: JSON, or a status. Anything else is 404."""

    answers: dict[str, Any] = field(default_factory=lambda: dict(READY))
    ahead_s: float = 0.0
    """Its header Date is so much ahead of the time."""
    port: int = 0


@contextmanager
def stand_in(found: StandIn, tls: tuple[Path, Path] | None = None) -> Iterator[StandIn]:
    """``found`` with its port, listening until the context is left. ``tls`` are certificate and key."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def date_time_string(self, timestamp: float | None = None) -> str:
            return format_datetime(datetime.now(UTC) + timedelta(seconds=found.ahead_s), usegmt=True)

        def do_GET(self) -> None:
            answer = found.answers.get(self.path.partition("?")[0], 404)
            status, body = (answer, {}) if isinstance(answer, int) else (200, answer)
            text = answer if isinstance(answer, bytes) else orjson.dumps(body)
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.send_response(status)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_POST = do_GET  # noqa: N815 (named by the library)

        def log_message(self, *arguments: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Clients that do not trust the certificate hang up."""

    server = Server(("127.0.0.1", 0), Handler)
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*tls)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    found.port = server.server_address[1]
    with served_in_thread(server):
        yield found


def certificate_for(
    directory: Path, host: str = "localhost", *, from_days: float = -10.0, to_days: float = 90.0
) -> tuple[Path, Path]:
    """A self-signed certificate that is valid between these days from now, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tests")])
    now = datetime.now(UTC)
    names: list[x509.GeneralName] = [x509.DNSName(host)]
    if host == "localhost":
        names.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + timedelta(days=from_days))
        .not_valid_after(now + timedelta(days=to_days))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate, secret = directory / "certificate.pem", directory / "key.pem"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    secret.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    )
    return certificate, secret
