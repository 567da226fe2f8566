"""What a worker is told."""

from dataclasses import replace
from pathlib import Path

import pytest

from gateway.runtime.workers.role import WorkerRole

ROLE = WorkerRole(
    index=1,
    count=4,
    process="a-1",
    processes=["a-0", "a-1", "a-2", "a-3"],
    replaces=False,
    supervisor=7,
    listener=5,
    redirect=None,
    state="/var/state",
    announces=False,
    flags={"listen": "127.0.0.1:1"},
    config=None,
)


def test_it_travels() -> None:
    role = replace(ROLE, flags={"state": Path("/s"), "tls": {"cert": Path("/c")}})
    assert WorkerRole.decode(role.encode()) == replace(role, flags={"state": "/s", "tls": {"cert": "/c"}})


@pytest.mark.parametrize("data", [b"", b"[]", b'{"index": 1}', b"\xff"])
def test_what_is_no_role_is_refused(data: bytes) -> None:
    with pytest.raises((ValueError, TypeError)):
        WorkerRole.decode(data)
