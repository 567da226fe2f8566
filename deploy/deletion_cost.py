"""A command of ``[scaling]`` in Kubernetes: writes the gateway's deletion costs onto agents' pods.

The gateway runs it with the change on its standard input (docs/scaling.md#hooks). Each of ``replicas`` whose
agent has its pod's name gets the annotation ``controller.kubernetes.io/pod-deletion-cost``, so that of a
Deployment with fewer replicas those with the least remaining work end first. Exit code 0: written, or no such
pod; 1: the gateway shall try again; 2: what it was given is no such change. It asks the API of the cluster in
which it runs, as the pod's service account, and needs nothing but Python.
"""

import http.client
import json
import os
import ssl
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
MOST = 2**31 - 1
"""Kubernetes takes costs of 32 bits."""
_TIMEOUT_S = 10.0

Connect = Callable[[], http.client.HTTPConnection]


class NotWritten(Exception):
    """The message says why."""


class NoChange(ValueError):
    """The input is none; the message says why."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where pods are, and who asks."""

    connect: Connect
    namespace: str
    token: str


def cluster_of(environ: Mapping[str, str], account: Path = ACCOUNT) -> Cluster:
    """The one in which this runs. Raises NotWritten where it is none."""
    try:
        host, port = environ["KUBERNETES_SERVICE_HOST"], int(environ.get("KUBERNETES_SERVICE_PORT", "443"))
        tls = ssl.create_default_context(cafile=account / "ca.crt")
        namespace, token = ((account / name).read_text().strip() for name in ("namespace", "token"))
    except KeyError as error:
        raise NotWritten(f"{error.args[0]} is not set: this is no pod") from None
    except OSError as error:
        raise NotWritten(f"the service account cannot be read: {error}") from None
    return Cluster(
        lambda: http.client.HTTPSConnection(host, port, timeout=_TIMEOUT_S, context=tls), namespace, token
    )


def costs_of(change: object) -> dict[str, int]:
    """Agent → cost. Raises NoChange."""
    try:
        replicas = change["replicas"]  # type: ignore[index]
        return {str(each["agent"]): min(int(each["cost"]), MOST) for each in replicas}
    except (KeyError, TypeError, ValueError) as error:
        raise NoChange(f"no change of what is wanted: {error!r}") from None


def write(cluster: Cluster, costs: Mapping[str, int]) -> int:
    """How many pods have them now. Agents that are no pods there are left out. Raises NotWritten."""
    connection, written = cluster.connect(), 0
    try:
        for agent, cost in costs.items():
            written += _write_one(connection, cluster, agent, cost)
    except (OSError, http.client.HTTPException) as error:
        raise NotWritten(f"the cluster's API does not answer: {error!r}") from None
    finally:
        connection.close()
    return written


def _write_one(connection: http.client.HTTPConnection, cluster: Cluster, agent: str, cost: int) -> bool:
    """Whether there is such a pod."""
    body = {"metadata": {"annotations": {ANNOTATION: str(cost)}}}
    headers = {
        "authorization": f"Bearer {cluster.token}",
        "content-type": "application/merge-patch+json",
        "accept": "application/json",
    }
    path = f"/api/v1/namespaces/{quote(cluster.namespace, safe='')}/pods/{quote(agent, safe='')}"
    connection.request("PATCH", path, json.dumps(body), headers)
    answer = connection.getresponse()
    said = answer.read()
    if answer.status == http.client.NOT_FOUND:
        return False
    if answer.status != http.client.OK:
        raise NotWritten(f"{agent}: status {answer.status}: {said[:300].decode(errors='replace')}")
    return True


def main(text: str, environ: Mapping[str, str], account: Path = ACCOUNT) -> int:
    """The exit code."""
    try:
        change: Any = json.loads(text)
        costs = costs_of(change)
        written = write(cluster_of(environ, account), costs)
    except (NoChange, NotWritten, json.JSONDecodeError) as error:
        sys.stderr.write(f"{error}\n")
        return 1 if isinstance(error, NotWritten) else 2
    sys.stdout.write(f"{written} of {len(costs)} pods have their cost\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.stdin.read(), os.environ))
