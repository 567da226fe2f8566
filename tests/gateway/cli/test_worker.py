"""``python -m gateway.cli.worker``, which is the supervisor's to start."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.forks import trunkline


@pytest.mark.parametrize("arguments", [(), ("0",), ("nothing",), ("999",), ("999", "998")])
def test_people_are_told_what_starts_workers(arguments: tuple[str, ...]) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "gateway.cli.worker", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith("trunkline gateway: ")
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("environment", "status", "said"),
    [
        ({"TRUNKLINE_GATEWAY_DISPATCH__POLICY": "none"}, 2, "dispatch.policy"),
        ({"TRUNKLINE_GATEWAY_TLS__CERT": __file__, "TRUNKLINE_GATEWAY_TLS__KEY": __file__}, 1, "for TLS"),
    ],
)
def test_what_the_first_worker_finds_wrong_is_said_once_and_ends_all(
    tmp_path: Path, environment: dict[str, str], status: int, said: str
) -> None:
    command = ["gateway", "--listen", "127.0.0.1:0", "--state", str(tmp_path / "s"), "--workers", "3"]
    ended = trunkline(*command, environment={**os.environ, **environment})
    assert (ended.returncode, ended.stderr.count(said)) == (status, 1), ended.stderr
