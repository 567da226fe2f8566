"""The way to a URL, hop by hop and timed: its name, its address, a proxy, TLS, and HTTP/1.1 on top.

Sockets that block, each with a timeout: checks run in threads.
"""

import base64
import contextlib
import ipaddress
import socket
import ssl
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path
from select import select
from urllib.parse import SplitResult, quote, unquote, urlsplit

from shared.link.addresses import proxy_for
from shared.process.connection_errors import explain_http_error, host_of

HTTP_1 = ("http/1.1",)
_PATH_CHARS = "/%:@!$&'()*+,;=~"

Address = tuple[int, str, int]
"""Its family, it, and the port."""


class NoWay(Exception):
    """A hop of the way cannot be taken. The message says why, as a sentence's beginning."""


@dataclass(frozen=True, slots=True)
class Target:
    """A gateway's URL, or that of a proxy before it."""

    url: str
    """Without a slash at its end, and without ``/v1``."""
    secure: bool
    host: str
    """As DNS knows it: a name beyond ASCII is in its encoded form."""
    port: int
    prefix: str
    """The path as requests have it, encoded where it is beyond ASCII."""

    @classmethod
    def of(cls, url: str) -> "Target":
        """Raises ValueError, saying what is wrong."""
        parts: SplitResult = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
            raise ValueError(f"{url!r} is no URL of a gateway: write https://HOST[:PORT]")
        if parts.query or parts.fragment:
            raise ValueError(f"{url!r} has a query or a fragment: write https://HOST[:PORT]")
        secure, prefix = parts.scheme == "https", parts.path.rstrip("/").removesuffix("/v1")
        port = parts.port or (443 if secure else 80)
        host, path = parts.hostname, quote(prefix, safe=_PATH_CHARS)
        with contextlib.suppress(UnicodeError):  # one that is no name is told as the name is looked up
            host = host if host.isascii() else host.encode("idna").decode()
        return cls(f"{parts.scheme}://{parts.netloc}{prefix}", secure, host, port, path)

    @property
    def named(self) -> bool:
        """The host is a name, and no address."""
        try:
            ipaddress.ip_address(self.host)
        except ValueError:
            return True
        return False

    @property
    def authority(self) -> str:
        """For the field ``Host``."""
        usual = self.port == (443 if self.secure else 80)
        return self.bracketed if usual else self.address

    @property
    def bracketed(self) -> str:
        """The host as URLs have it."""
        return f"[{self.host}]" if ":" in self.host else self.host

    @property
    def address(self) -> str:
        """The host and the port, as a proxy is asked to connect to them."""
        return f"{self.bracketed}:{self.port}"


@dataclass(slots=True)
class Hops:
    """What the parts of a way took, in seconds."""

    dns_s: float = 0.0
    connect_s: float = 0.0
    proxy_s: float = 0.0
    tls_s: float = 0.0


@dataclass(slots=True)
class Line:
    """An open connection."""

    socket: socket.socket
    hops: Hops
    protocol: str | None = None
    """What TLS agreed on (ALPN)."""


@dataclass(frozen=True)
class Way:
    """How to get to a target from here."""

    target: Target
    environ: Mapping[str, str] = field(default_factory=dict)
    ca_file: Path | None = None
    timeout_s: float = 10.0
    """For each hop, and for each wait of a request unless it says otherwise."""

    @property
    def proxy(self) -> str | None:
        """The URL of the proxy that the environment wants to be used."""
        return proxy_for(self.target.url, self.environ)

    def addresses(self) -> list[Address]:
        """Of the target, or of the proxy that leads there. Raises NoWay."""
        host, port = self.target.host, self.target.port
        if self.proxy is not None:
            host, port = _proxy_address(self.proxy)
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            said = error.strerror if isinstance(error, OSError) else str(error)
            raise NoWay(f"the name {host} cannot be resolved ({said})") from error
        return list(dict.fromkeys((int(each[0]), str(each[4][0]), port) for each in found))

    def open(self, alpn: Sequence[str] = HTTP_1, *, verify: bool = True) -> Line:
        """A connection to the target, with TLS if its URL is https. Raises NoWay."""
        hops, began_s = Hops(), time.monotonic()
        addresses = self.addresses()
        hops.dns_s, began_s = _since(began_s)
        raw = self._connect(addresses)
        hops.connect_s, began_s = _since(began_s)
        try:
            if self.proxy is not None:
                self._through_proxy(raw, self.proxy)
                hops.proxy_s, began_s = _since(began_s)
            if not self.target.secure:
                return Line(raw, hops)
            secured = self._context(alpn, verify=verify).wrap_socket(raw, server_hostname=self.target.host)
        except (OSError, ValueError, HTTPException) as error:
            raw.close()
            raise NoWay(explain_http_error(self.target.url, error, self.proxy)) from error
        except NoWay:
            raw.close()
            raise
        hops.tls_s, _ = _since(began_s)
        return Line(secured, hops, secured.selected_alpn_protocol())

    def _connect(self, addresses: Iterable[Address]) -> socket.socket:
        """Raises NoWay."""
        first: NoWay | None = None
        for address in addresses:
            try:
                return connect(address, self.timeout_s)
            except OSError as error:
                first = first or NoWay(explain_http_error(self.target.url, error, self.proxy))
        raise first or NoWay(f"{self.target.host} has no address")

    def _through_proxy(self, raw: socket.socket, proxy: str) -> None:
        """Have the proxy connect to the target. Raises NoWay, OSError and HTTPException."""
        parts = urlsplit(proxy)
        place = self.target.address
        login = ""
        if parts.username:
            text = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            login = f"Proxy-Authorization: Basic {base64.b64encode(text.encode()).decode()}\r\n"
        raw.sendall(f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n{login}\r\n".encode())
        response = HTTPResponse(raw, method="CONNECT")
        response.begin()
        if response.status != 200:
            raise NoWay(f"the proxy {host_of(proxy)} answers CONNECT {place} with status {response.status}")

    def _context(self, alpn: Sequence[str], *, verify: bool) -> ssl.SSLContext:
        """Raises NoWay."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except OSError as error:
            raise NoWay(f"no certificates to trust can be read from {self.ca_file} ({error})") from error
        context.set_alpn_protocols(list(alpn))
        if not verify:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context

    @contextlib.contextmanager
    def request(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        timeout_s: float | None = None,
        length: int | None = None,
        *,
        verify: bool = True,
    ) -> Iterator["TimedResponse"]:
        """The response to a request, to be read inside. ``length``: so many zero bytes are sent as its body,
        until there is an answer. Raises NoWay, and for an answer that is no HTTP or does not come OSError and
        HTTPException."""
        line = self.open(verify=verify)
        line.socket.settimeout(self.timeout_s if timeout_s is None else timeout_s)
        connection = HTTPConnection(self.target.host, self.target.port)
        connection.sock = line.socket
        fields = {"host": self.target.authority, "user-agent": "trunkline-doctor", "connection": "close"}
        fields |= headers
        if length is not None or body is not None:
            fields["content-length"] = str(length if body is None else len(body))
        try:
            began_s = time.monotonic()
            connection.putrequest(
                method, self.target.prefix + path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in fields.items():
                connection.putheader(name, value)
            connection.endheaders(body)
            if length is not None:
                _send_zeros(line.socket, length)
            response = connection.getresponse()
            yield TimedResponse(response, line.hops, began_s, time.monotonic())
        finally:
            connection.close()
            line.socket.close()


@dataclass(frozen=True, slots=True)
class TimedResponse:
    """A response whose head is here."""

    response: HTTPResponse
    hops: Hops
    sent_s: float
    """When the request began to be sent, by :func:`time.monotonic`."""
    head_s: float
    """When its head came."""

    @property
    def status(self) -> int:
        return self.response.status

    def header(self, name: str) -> str:
        return self.response.getheader(name) or ""

    def pieces(self, most_bytes: int = 4 * 1024 * 1024) -> Iterator[tuple[float, bytes]]:
        """The body as it comes, each piece with its time."""
        taken = 0
        while taken < most_bytes and (piece := self.response.read1(65_536)):
            taken += len(piece)
            yield time.monotonic(), piece

    def body(self) -> bytes:
        return b"".join(piece for _, piece in self.pieces())


def connect(address: Address, timeout_s: float) -> socket.socket:
    """Raises OSError."""
    family, host, port = address
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.settimeout(timeout_s)
        made.connect((host, port))
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        made.close()
        raise
    return made


def _send_zeros(sock: socket.socket, length: int) -> None:
    """Ends early where the other side answers before it has all, as for a body that is too long."""
    piece, left = bytes(64 * 1024), length
    encrypted = isinstance(sock, ssl.SSLSocket)  # there something may be to read that is no answer
    with contextlib.suppress(BrokenPipeError, ConnectionResetError, ssl.SSLError):
        while left > 0 and (encrypted or not select([sock], [], [], 0)[0]):
            sock.sendall(piece[: min(left, len(piece))])
            left -= len(piece)


def _proxy_address(proxy: str) -> tuple[str, int]:
    """Raises NoWay."""
    try:
        parts = urlsplit(proxy)
        host, port = parts.hostname, parts.port or 80
    except ValueError as error:
        raise NoWay(f"the proxy's URL in the environment cannot be read ({error})") from error
    if parts.scheme != "http" or not host:
        raise NoWay(
            f"only http:// proxies can be looked at, and the environment names one of {parts.scheme}://"
        )
    return host, port


def _since(began_s: float) -> tuple[float, float]:
    now = time.monotonic()
    return now - began_s, now
