"""Workers of a real gateway that hang, and a machine that was suspended as a whole."""

import os
import signal
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from shared.process.ports import free_port
from tests.support.logged_events import logged_events
from tests.support.processes import START_S, House, until

pytestmark = pytest.mark.cluster

SILENCE_S = 6.0


def test_a_worker_that_hangs_is_replaced_and_after_a_suspension_nobody_is(tmp_path: Path) -> None:
    url, state = f"http://127.0.0.1:{free_port()}", tmp_path / "state"
    with House(tmp_path / "house") as house:
        supervisor = house.children.start(
            "gateway",
            "gateway",
            *("--listen", url.partition("//")[2], "--state", str(state), "--workers", "2"),
            *("--log-format", "json"),
            environment={"TRUNKLINE_GATEWAY_WORKER_SILENCE_S": str(SILENCE_S)},
        )

        def events(name: str) -> list[dict[str, Any]]:
            return logged_events(supervisor.log, name)

        def healthy() -> bool:
            try:
                with urllib.request.urlopen(f"{url}/healthz", timeout=20.0) as response:
                    return bool(response.status == 200)
            except OSError:
                return False

        house.children.wait_until(lambda: len(events("worker_serves")) == 2, "both serve", START_S)

        stopped = {each["worker"]: each["pid"] for each in events("worker_serves")}
        everybody = [supervisor.pid, *stopped.values()]
        for pid in reversed(everybody):
            os.kill(pid, signal.SIGSTOP)
        time.sleep(SILENCE_S + 3.0)
        for pid in everybody:
            os.kill(pid, signal.SIGCONT)
        assert all(healthy() for _ in range(12))

        os.kill(stopped[1], signal.SIGSTOP)
        asked = [healthy() for _ in range(12)]
        assert all(asked), "the other one accepts what the kernel gives to it"
        house.children.wait_until(lambda: len(events("worker_serves")) == 3, "the next one serves", START_S)
        assert all(healthy() for _ in range(12))
        (hung,), (killed,), (ended,) = (
            events(name) for name in ("worker_hangs", "worker_killed", "worker_ended")
        )
        assert {each["pid"] for each in (hung, killed, ended)} == {stopped[1]}
        assert (hung["state"], killed["stacks"], ended["signal"]) == ("stopped", None, signal.SIGKILL)
        again = events("worker_serves")[-1]
        assert again["worker"] == 1
        os.kill(again["pid"], signal.SIGUSR1)  # which ends nobody
        until("it serves", lambda: all(healthy() for _ in range(12)), 30.0)
        assert len(events("worker_ended")) == 1
