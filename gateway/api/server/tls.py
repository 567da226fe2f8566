"""TLS ended here: TLS 1.2 and later, 1.3 where clients show certificates (RFC 9325).

Files that change are taken up anew. A port of its own for plain HTTP sends everybody on to HTTPS and serves
nothing else.
"""

import asyncio
import re
import ssl
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from cryptography import x509

_log = structlog.get_logger(__name__)

HANDSHAKE_S = 10.0
"""The longest a handshake may take."""

_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""For TLS 1.2: forward secrecy and authenticated encryption only. TLS 1.3 has no others."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files. ``client_ca`` has client certificates checked, ``required`` ends connections without one."""

    cert: Path
    key: Path
    client_ca: Path | None = None
    required: bool = False

    def stamps(self) -> tuple[object, ...]:
        """Differs once one of them has changed."""
        return tuple(_stamp(path) for path in (self.cert, self.key, self.client_ca) if path is not None)


def _stamp(path: Path) -> object:
    try:
        seen = path.stat()
    except OSError:
        return None
    return (seen.st_mtime_ns, seen.st_size, seen.st_ino)


def build_context(files: TlsFiles) -> ssl.SSLContext:
    """Raises OSError (ssl.SSLError is one) and ValueError for files that cannot be used together."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHERS)
    context.set_alpn_protocols(["http/1.1"])
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_SINGLE_ECDH_USE
    context.load_cert_chain(files.cert, files.key, password=_no_password)
    if files.client_ca is not None:
        context.load_verify_locations(files.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED if files.required else ssl.CERT_OPTIONAL
        # A session taken up again would not be checked against a new authority. TLS 1.2 lets clients do that
        # without a ticket, too, and Python has no switch for it.
        context.num_tickets = 0
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def certificate_end_s(file: Path) -> float | None:
    """Unix time until which the first certificate of a PEM file is valid, or one of the chain is if that is
    sooner; None where it cannot be read."""
    try:
        chain = x509.load_pem_x509_certificates(file.read_bytes())
    except (OSError, ValueError):
        return None
    return min(each.not_valid_after_utc.timestamp() for each in chain)


def _no_password() -> str:
    """OpenSSL would ask for the key's on the terminal."""
    return ""


class Tls:
    """The certificate in force. :attr:`context` is listened with; handshakes use the newest that was good."""

    def __init__(self, files: TlsFiles) -> None:
        """Raises what :func:`build_context` raises."""
        self._files = files
        self._reloading = threading.Lock()
        """A signal's reload and a regular one must not overtake each other, or the older pair would stay."""
        self._stamps = files.stamps()
        self.context = self._newest = build_context(files)
        self.context.sni_callback = self._choose
        self.ends_s = certificate_end_s(files.cert)
        """Unix time of the end of the certificate in force; None where that could not be read."""

    def reload(self) -> bool:
        """Take up files that have changed; whether there were any. Files that cannot be used are logged once,
        and the old ones stay in force."""
        with self._reloading:
            stamps = self._files.stamps()
            if stamps == self._stamps:
                return False
            self._stamps = stamps
            try:
                self._newest = build_context(self._files)
                self.ends_s = certificate_end_s(self._files.cert)
            except (OSError, ValueError) as error:
                _log.error("tls_files_refused", cert=str(self._files.cert), reason=_reason(error))
                return False
            _log.info("tls_files_reloaded", cert=str(self._files.cert))
            return True

    async def watch(self, every_s: float) -> None:
        """Reload every ``every_s`` seconds, until cancelled."""
        while True:
            await asyncio.sleep(every_s)
            await asyncio.to_thread(self.reload)

    def _choose(self, connection: Any, name: str | None, context: ssl.SSLContext) -> None:
        """Called within every handshake, whether the client names a server or not."""
        if self._newest is not self.context:
            connection.context = self._newest


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)


def has_certificate(transport: asyncio.BaseTransport) -> bool:
    """Whether the client of this connection has shown a certificate; one that was shown is a good one."""
    connection = transport.get_extra_info("ssl_object")
    return connection is not None and bool(connection.getpeercert())


REDIRECT_BYTES = 8 * 1024
"""How much of a request for plain HTTP is read."""
REDIRECT_WAIT_S = 5.0
"""The longest it may take."""
REDIRECT_CONNECTIONS = 256
"""At once; more are closed as they come."""

_REQUEST_LINE = re.compile(rb"(?P<method>[A-Z]{1,16}) (?P<target>/[\x21\x22\x24-\x7e]*) HTTP/1\.[01]\r\n")
_HOST_FIELD = re.compile(
    rb"\r\nhost:[ \t]*(?P<name>[A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?[ \t]*\r\n", re.I
)
_KEY_FIELD = re.compile(rb"\r\n(authorization|x-api-key|api-key)[ \t]*:", re.I)


def answer_to(head: bytes, https_port: int) -> bytes:
    """The whole answer to the head of a request, up to and with its empty line."""
    line, host = _REQUEST_LINE.match(head), _HOST_FIELD.search(head)
    if line is None or host is None or head.lower().count(b"\r\nhost:") != 1:
        return _answer(b"400 Bad Request", b"This port sends on to HTTPS, and this is no request.\n")
    if _KEY_FIELD.search(head):
        said = b"This key came unencrypted, so others may have read it: make a new one, and use https.\n"
        return _answer(b"403 Forbidden", said)
    port = b"" if https_port == 443 else b":%d" % https_port
    where = b"https://%b%b%b" % (host["name"], port, line["target"])
    return _answer(b"308 Permanent Redirect", b"Use https.\n", b"location: %b\r\n" % where)


def _answer(status: bytes, said: bytes, fields: bytes = b"") -> bytes:
    head = b"HTTP/1.1 %b\r\n%bcontent-type: text/plain\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
    return head % (status, fields, len(said)) + said


@dataclass(eq=False)
class Redirect(asyncio.Protocol):
    """One client's connection: one request, one answer."""

    https_port: int
    present: "set[Redirect]"
    _head: bytes = b""
    _transport: asyncio.Transport | None = None
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        if len(self.present) >= REDIRECT_CONNECTIONS:
            transport.abort()
            return
        self.present.add(self)
        self._timer = asyncio.get_running_loop().call_later(REDIRECT_WAIT_S, transport.abort)

    def data_received(self, data: bytes) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._head += data
        head, end, _ = self._head.partition(b"\r\n\r\n")
        if end or len(self._head) > REDIRECT_BYTES:
            transport.write(answer_to(head + end, self.https_port))
            transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.present.discard(self)
        if self._timer is not None:
            self._timer.cancel()
