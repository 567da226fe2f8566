"""What was acknowledged is there: after kill -9 in the middle of writes, and with a log torn anywhere."""

import random
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gateway.storage import DATABASE_NAME, KEY_NAME, Account, Amount, Store, UsageGrouping
from shared.process.ports import free_port
from tests.integration.killed_writers import KilledWriters, killed_writers
from tests.support.processes import START_S, until

_WRITERS = """
import os, sys
from pathlib import Path
from gateway.storage import Account, Amount, Store

def write(run):
    say("pid", os.getpid())
    with Store.open(Path(sys.argv[1]), serve=True) as store:
        for n in range(100_000):
            store.keys.create(f"{run}-{n}", "t", 1.0)
            say("key", f"{run}-{n}")
            say("token", store.tokens.create(60, 1, ["*"], {}, 1.0)[0].id_text)
            store.usage.add({Account("2026-11-21", "k", "t", run): Amount(1, 10)})
            say("usage", run)
            if n % 3 == 0:
                store.backup.keep(n * 100.0)
"""


@pytest.fixture
def writers(tmp_path: Path) -> Iterator[KilledWriters]:
    with killed_writers(_WRITERS, tmp_path) as processes:
        yield processes


def test_everything_acknowledged_before_kill_9_is_there_at_the_next_start(
    tmp_path: Path, writers: KilledWriters
) -> None:
    drawn = random.Random(6)
    acknowledged: list[list[str]] = []
    for run in range(5):
        acknowledged += writers.killed_after(str(run), drawn.randrange(3, 60)).said
        with Store.open(tmp_path, serve=True) as store:
            keys = {key.name for key in store.keys.list()}
            tokens = {token.id for token in store.tokens.list()}
            used = {total.name: total.amount for total in store.usage.totals(UsageGrouping.MODEL)}
        assert keys >= {name for what, name in acknowledged if what == "key"}
        assert tokens >= {name for what, name in acknowledged if what == "token"}
        for model, amount in used.items():
            count = acknowledged.count(["usage", model])
            assert amount.requests in (count, count + 1), "the last may be written and not acknowledged"
            assert amount.prompt_tokens == 10 * amount.requests
        assert len(used) == len({model for what, model in acknowledged if what == "usage"} | set(used))


class Torn:
    """A database and its log, as they lay on the disk after each of some commits."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._original = directory / "original"
        self.ends: list[int] = []
        """The size of the log after each commit."""
        with Store.open(self._original) as store:
            log = self._original / f"{DATABASE_NAME}-wal"
            for number in range(12):
                store.keys.create(f"key-{number:02}", "t", 1.0)
                store.usage.add({Account("2026-11-21", "k", "t", "m"): Amount(1)})
                self.ends.append(log.stat().st_size)
            self.log = log.read_bytes()
            self.index = (self._original / f"{DATABASE_NAME}-shm").read_bytes()
            self._database = (self._original / DATABASE_NAME).read_bytes()

    def found(self, name: str, log: bytes, index: bytes | None = None) -> int:
        """How many of the commits a gateway finds that starts with this ``log``; it must write, too."""
        state = self.directory / name
        state.mkdir()
        shutil.copy(self._original / KEY_NAME, state)
        (state / DATABASE_NAME).write_bytes(self._database)
        (state / f"{DATABASE_NAME}-wal").write_bytes(log)
        if index is not None:
            (state / f"{DATABASE_NAME}-shm").write_bytes(index)
        with Store.open(state, serve=True) as store:
            names = sorted(key.name for key in store.keys.list())
            assert names == [f"key-{number:02}" for number in range(len(names))]
            used = sum(total.amount.requests for total in store.usage.totals(UsageGrouping.DAY))
            assert used in (len(names), len(names) - 1)
            store.keys.create("after", "t", 2.0)
        with Store.open(state) as store:
            assert len(store.keys.list()) == len(names) + 1
        return used


@pytest.fixture
def torn(tmp_path: Path) -> Torn:
    return Torn(tmp_path)


def test_a_log_cut_anywhere_starts_with_all_that_was_committed_before_the_cut(torn: Torn) -> None:
    drawn = random.Random(7)
    size = len(torn.log)
    first = torn.ends[0]
    cuts = {
        first,
        size,
        size - 1,
        torn.ends[5] - 1,
        torn.ends[5] + 1,
        *(drawn.randrange(first, size) for _ in range(10)),
    }
    for cut in sorted(cuts):
        expected = sum(end <= cut for end in torn.ends)
        assert torn.found(f"cut-{cut}", torn.log[:cut]) == expected


def _garbage(size: int) -> bytes:
    return random.Random(8).randbytes(size)


@pytest.mark.parametrize(
    ("damage", "lost"),
    [
        (lambda log: log + _garbage(5000), 0),
        (lambda log: log[:-2000] + _garbage(2000), 1),
        (lambda log: log[:-4096] + bytes(4096), 1),
    ],
)
def test_garbage_at_the_end_of_a_log_is_no_part_of_it(
    torn: Torn, damage: Callable[[bytes], bytes], lost: int
) -> None:
    assert torn.found("state", damage(torn.log)) == 12 - lost


@pytest.mark.parametrize("index", [b"", _garbage(32768), _garbage(777)])
def test_the_index_of_a_log_is_made_again_when_it_is_damaged(torn: Torn, index: bytes) -> None:
    assert torn.found("state", torn.log, index) == 12


def test_the_index_of_a_log_is_made_again_when_it_is_cut(torn: Torn) -> None:
    assert torn.found("state", torn.log, torn.index[:100]) == 12


_CREATE = """
import resource, sys
from pathlib import Path
log = Path(sys.argv[1]) / "gateway.db-wal"
resource.setrlimit(resource.RLIMIT_FSIZE, (log.stat().st_size + 2000,) * 2)
sys.argv = ["trunkline", "key", "create", "--name", "new", "--state", sys.argv[1]]
from shared.process.cli import main
main()
"""


def test_a_key_for_which_there_is_no_room_is_refused_in_a_line_and_is_not_half_there(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        store.keys.create("old", "t", 1.0)
        done = subprocess.run([sys.executable, "-c", _CREATE, str(tmp_path)], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("trunkline: ")
        assert done.stderr.count("\n") == 1
        assert "gateway.db" in done.stderr
        assert [key.name for key in store.keys.list()] == ["old"]
        store.keys.create("new", "t", 1.0)


def test_a_gateway_whose_output_goes_to_a_full_disk_serves_and_stops_in_order(tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "gateway", "--listen", f"127.0.0.1:{port}", "--state", str(tmp_path)]
    url = f"http://127.0.0.1:{port}"

    def status(path: str) -> int:
        try:
            with urllib.request.urlopen(url + path) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            error.close()
            return error.code
        except OSError:
            return 0

    with Path("/dev/full").open("w") as full:
        gateway = subprocess.Popen(command, stdout=full, stderr=full)
    try:
        until("it serves", lambda: status("/readyz") or gateway.poll() is not None, START_S)
        assert [status("/v1/models") for _ in range(3)] == [401] * 3
        assert status("/readyz") in (200, 503)
        gateway.terminate()
        assert gateway.wait(20) in (0, 120), "120: what is left in Python's buffer could not be written"
    finally:
        gateway.kill()
        gateway.wait()
