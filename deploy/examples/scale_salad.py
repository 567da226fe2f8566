"""A command of ``[scaling]`` for Salad: as many replicas of a container group as are wanted.

    [scaling]
    command = ["python", "scale_salad.py", "ORGANIZATION/PROJECT", "rtx4090=GROUP"]

The gateway runs it with the change on its standard input (docs/scaling.md#hooks) and ``SALAD_API_KEY`` in its
environment. Each class of device has its container group. First the instances get the gateway's deletion
costs, by their agents' names ``salad-MACHINE`` (``box/start``), so that those with the least remaining work
end first; then the group gets its replicas. Exit code 0: done, or the class has no group; 1: the gateway
is to try again; 2: wrong usage.
"""

import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

API = "https://api.salad.com/api/public"
PREFIX = "salad-"
_TIMEOUT_S = 15.0


class Salad:
    """One container group. Every method raises OSError where the API does not do it."""

    def __init__(self, place: str, group: str, key: str, api: str = API) -> None:
        """``place``: ORGANIZATION/PROJECT."""
        organization, _, project = (quote(part, safe="") for part in place.partition("/"))
        self._url = (
            f"{api}/organizations/{organization}/projects/{project}/containers/{quote(group, safe='')}"
        )
        self._key = key

    def machines(self) -> dict[str, str]:
        """Machine → instance."""
        found = self._ask("GET", "/instances")["instances"]
        return {str(each["machine_id"]): str(each["id"]) for each in found}

    def set_cost(self, instance: str, cost: int) -> None:
        self._ask("PATCH", f"/instances/{quote(instance, safe='')}", {"deletion_cost": cost})

    def set_replicas(self, replicas: int) -> None:
        self._ask("PATCH", "", {"replicas": replicas})

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        headers = {"salad-api-key": self._key, "content-type": "application/merge-patch+json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, headers, method=method)  # noqa: S310
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310
            said = answer.read()
        return json.loads(said) if said else {}


def apply(salad: Salad, change: Mapping[str, Any]) -> None:
    """Costs first, so that none ends that has more to do than another. Raises OSError."""
    machines = salad.machines()
    for each in change["replicas"]:
        instance = machines.get(str(each["agent"]).removeprefix(PREFIX))
        if instance is not None:
            salad.set_cost(instance, int(each["cost"]))
    salad.set_replicas(int(change["to"]))


def main(arguments: Sequence[str], text: str, environ: Mapping[str, str], api: str = API) -> int:
    """The exit code."""
    key = environ.get("SALAD_API_KEY", "")
    groups = dict(each.split("=", 1) for each in arguments[1:] if "=" in each)
    if "/" not in "".join(arguments[:1]) or len(groups) != len(arguments) - 1 or not groups or not key:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    try:
        change = json.loads(text)
        if change["class"] in groups:
            apply(Salad(arguments[0], groups[change["class"]], key, api), change)
    except (OSError, KeyError, TypeError, ValueError) as error:
        said = error.read()[:300] if isinstance(error, urllib.error.HTTPError) else ""
        sys.stderr.write(f"{error!r} {said!r}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], sys.stdin.read(), os.environ))
