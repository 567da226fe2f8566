"""``trunkline quickstart``, as a newcomer runs it, with the tiny model for speed."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.processes import command, fetch, until

pytestmark = [pytest.mark.slow, pytest.mark.long]


def _descendants(pid: int) -> set[int]:
    """Without those of a process that ends meanwhile."""
    found: set[int] = set()
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found |= {child} | _descendants(child)
    return found


def _runs_engine(pids: set[int]) -> bool:
    """Whether one of these is an engine, and no longer the agent that is about to become one."""
    lines = []
    for pid in pids:
        with suppress(OSError):
            lines.append(Path(f"/proc/{pid}/cmdline").read_bytes())
    return any(b"\0agent.engines.torch\0" in line for line in lines)


def _hear_ctrl_c() -> None:
    """Shells have what they start in the background ignore it, tests and their children too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def started(tiny_model: Path, tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    with (tmp_path / "output").open("wb") as output:
        line = command("quickstart", "--model", str(tiny_model))
        process = subprocess.Popen(
            line,
            stdout=output,
            stderr=output,
            env=os.environ | {"TMPDIR": str(tmp_path)},
            preexec_fn=_hear_ctrl_c,
        )
        try:
            yield process
        finally:
            process.terminate()
            process.wait(30)


def test_the_check_passes_and_says_how_long_the_first_token_took(tiny_model: Path, tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    line = command("quickstart", "--check", "--model", str(tiny_model))
    done = subprocess.run(line, capture_output=True, text=True, timeout=180, env=environment)
    assert done.returncode == 0, done.stderr
    assert re.search(r"time to first token: \d+ ms", done.stdout)
    assert done.stdout.endswith("everything works\n")
    assert [part in done.stdout for part in ("streamed chat  ok", "plain chat     ok", "embeddings     ok")]
    assert not list(tmp_path.glob("trunkline-*")), "temporary files stayed behind"


def test_a_directory_that_holds_no_model_is_wrong_usage(tmp_path: Path) -> None:
    line = command("quickstart", "--check", "--model", str(tmp_path / "nothing-here"))
    environment = os.environ | {"COLUMNS": "200"}
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 2
    assert "nothing-here" in done.stderr


def test_killed_it_takes_gateway_and_agent_with_it(
    started: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    """While the model loads: by then all are there."""
    until("gateway, agent and engine run", lambda: _runs_engine(_descendants(started.pid)), 120)
    family = _descendants(started.pid)
    assert len(family) >= 3
    started.kill()
    started.wait(60)
    until("they are gone", lambda: not [pid for pid in family if Path(f"/proc/{pid}").exists()])


def test_it_stays_up_until_ctrl_c_and_leaves_nothing_behind(
    started: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    log = tmp_path / "output"
    until("it is up", lambda: "until Ctrl-C" in log.read_text(), 120)
    text = log.read_text()
    found = re.search(r"base URL +(\S+)\nAPI key +(\S+)", text)
    assert found is not None, text
    assert fetch(f"{found[1]}/models", key=found[2])["data"]
    family = _descendants(started.pid)
    assert len(family) >= 3
    started.send_signal(signal.SIGINT)
    assert started.wait(60) == 0, log.read_text()
    assert not [pid for pid in family if Path(f"/proc/{pid}").exists()]
    assert not list(tmp_path.glob("trunkline-*"))
