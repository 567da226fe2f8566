"""``python healthcheck.py gateway|agent``: exit code 0 if the program in this container works, else 1.

A gateway has to answer ``/healthz`` at the address that it listens on. An agent listens nowhere, so it has to
hold the lock of its state directory. Needs nothing but Python.
"""

import http.client
import os
import ssl
import sys
from collections.abc import Mapping
from pathlib import Path

_TIMEOUT_S = 4.0
_BODY_BYTES = 65_536


def gateway_answers(environ: Mapping[str, str]) -> bool:
    """``/healthz`` is 200 there, with TLS or without, or clients without a certificate are turned away. The
    gateway's own is not looked at: it is for other names than loopback's."""
    host, _, port = environ.get("TRUNKLINE_GATEWAY_LISTEN", "127.0.0.1:8700").rpartition(":")
    host = {"0.0.0.0": "127.0.0.1", "[::]": "::1"}.get(host, host.strip("[]"))  # noqa: S104
    plain = http.client.HTTPConnection(host, int(port), timeout=_TIMEOUT_S)
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    secured = http.client.HTTPSConnection(host, int(port), timeout=_TIMEOUT_S, context=tls)
    # A file of settings may have a certificate, too, of which nothing is known here.
    connections = [secured] if "TRUNKLINE_GATEWAY_TLS__CERT" in environ else [plain, secured]
    return any(map(_answers, connections))


def _answers(connection: http.client.HTTPConnection) -> bool:
    try:
        connection.request("GET", "/healthz")
        answer = connection.getresponse()
        if answer.status == http.client.FORBIDDEN:  # with tls.client_required
            return b'"client_certificate_required"' in answer.read(_BODY_BYTES)
        return answer.status == http.client.OK
    except http.client.RemoteDisconnected:  # with tls.agents_required, once TLS is agreed on
        return isinstance(connection, http.client.HTTPSConnection)
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def agent_runs(environ: Mapping[str, str], locks: Path = Path("/proc/locks")) -> bool:
    """The kernel lists a lock on ``agent.lock`` of the state directory."""
    state = environ.get("TRUNKLINE_AGENT_STATE", "/var/lib/trunkline-agent")
    try:
        inode = (Path(state) / "agent.lock").stat().st_ino
        held = [line.split() for line in locks.read_text().splitlines()]
    except OSError:
        return False
    return any(field.endswith(f":{inode}") for fields in held for field in fields)


def main(arguments: list[str], environ: Mapping[str, str]) -> int:
    if arguments == ["gateway"]:
        return 0 if gateway_answers(environ) else 1
    if arguments == ["agent"]:
        return 0 if agent_runs(environ) else 1
    sys.stderr.write(f"{__doc__}\n")
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
