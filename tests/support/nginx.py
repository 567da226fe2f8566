"""A real nginx in front of a gateway, as an operator configures it for agents and clients."""

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shared.process.ports import free_port
from tests.support import programs
from tests.support.processes import until

PACKAGES = {"nginx": "nginx-light"}
"""Debian's, program → package."""
_START_S = 20.0

UPGRADES = (
    "proxy_http_version 1.1; "
    "proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $connection_upgrade;"
)
AS_IT_SHOULD = f"{UPGRADES} proxy_buffering off; proxy_request_buffering off; proxy_read_timeout 600s;"
"""What is said of the gateway's location."""


@contextmanager
def nginx_before(
    gateway_port: int,
    directory: Path,
    *,
    location: str = AS_IT_SHOULD,
    server: str = "client_max_body_size 0;",
) -> Iterator[int]:
    """The port at which nginx listens, until the context is left. ``location`` and ``server`` are what its
    configuration says there; as it is, it passes everything on at once."""
    port = free_port()
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = " ".join(f"{kind}_temp_path {directory}/{kind};" for kind in kinds)
    configuration = directory / "nginx.conf"
    configuration.write_text(f"""
        daemon off; worker_processes 1; pid {directory}/nginx.pid; error_log {directory}/nginx.err warn;
        events {{ worker_connections 256; }}
        http {{
            access_log off; {temporary}
            map $http_upgrade $connection_upgrade {{ default upgrade; '' ''; }}
            server {{
                listen 127.0.0.1:{port};
                {server}
                location / {{
                    proxy_pass http://127.0.0.1:{gateway_port};
                    {location}
                }}
            }}
        }}""")
    command = (programs.program("nginx"), "-e", f"{directory}/nginx.err", "-c", str(configuration))
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until("nginx listens", lambda: _listens(port), _START_S)
        yield port
    finally:
        process.terminate()
        process.wait(_START_S)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
