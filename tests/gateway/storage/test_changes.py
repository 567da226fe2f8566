"""A number tells of every change, and a request that compares it reads no database."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.storage import Store, changes
from gateway.storage.changes import KNOWN_S, ChangeCounter
from gateway.storage.errors import StateBusy
from tests.support.race import elsewhere


class Source:
    """A database's number, and who read it."""

    def __init__(self) -> None:
        self.number = 1
        self.broken = False
        self.now_s = 0.0
        self.readers: list[int] = []

    def read(self) -> int:
        self.readers.append(threading.get_ident())
        if self.broken:
            raise StateBusy("stuck")
        return self.number

    def clock(self) -> float:
        return self.now_s


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def kept(source: Source, monkeypatch: pytest.MonkeyPatch) -> Iterator[ChangeCounter]:
    """Its thread never gets to look."""
    monkeypatch.setattr(changes, "LOOK_S", 3600.0)
    counter = ChangeCounter(source.read, source.clock)
    counter.start_polling()
    yield counter
    counter.close()


def test_a_counter_that_nobody_keeps_looks_when_asked(source: Source) -> None:
    counter = ChangeCounter(source.read, source.clock)
    assert counter.cached() == 1
    source.number = 2
    assert counter.cached() == 2


def test_asking_a_kept_counter_reads_nothing(source: Source, kept: ChangeCounter) -> None:
    source.number = 2
    assert kept.cached() == 1
    assert len(source.readers) == 1


def test_a_look_is_good_for_a_while_and_no_longer(source: Source, kept: ChangeCounter) -> None:
    source.now_s = KNOWN_S
    assert kept.cached() == 1
    source.now_s = KNOWN_S + 0.01
    assert kept.cached() is None
    assert kept.read() == kept.cached() == 1


def test_after_a_look_that_failed_nothing_is_known(source: Source, kept: ChangeCounter) -> None:
    source.broken = True
    kept.written()
    assert kept.cached() is None
    with pytest.raises(StateBusy):
        kept.read()
    source.broken = False
    assert kept.read() == kept.cached() == 1


def test_who_writes_in_this_process_is_known_at_once(source: Source, kept: ChangeCounter) -> None:
    source.number = 2
    kept.written()
    assert kept.cached() == 2


def test_a_thread_looks_until_the_end(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "LOOK_S", 0.001)
    looked = threading.Event()

    def read() -> int:
        if threading.current_thread().name == "changes":
            looked.set()
        return 1

    counter = ChangeCounter(read)
    counter.start_polling()
    assert looked.wait(30)
    counter.close()
    assert "changes" not in {thread.name for thread in threading.enumerate()}


def test_what_was_written_counts_everywhere_after_a_while(source: Source) -> None:
    counter = ChangeCounter(source.read, source.clock)
    assert counter.unsettled_s() == 0.0
    source.now_s = 10.0
    counter.written()
    assert counter.unsettled_s() == KNOWN_S
    source.now_s = 10.0 + KNOWN_S
    assert counter.unsettled_s() <= 0


def test_a_command_returns_once_its_change_counts_in_a_running_gateway(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from gateway.storage import Store\n"
        "with Store.open(Path(sys.argv[1])) as store: store.keys.create('made', 'default', 1.0)"
    )
    with Store.open(tmp_path / "state", serve=True) as store:
        before = store.changes.read()
        elsewhere(code, str(store.state_dir))
        after = store.changes.cached()
        assert after is None or after != before


def test_a_change_in_the_gateways_own_process_counts_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "LOOK_S", 3600.0)
    monkeypatch.setattr(changes, "KNOWN_S", 3600.0)
    with Store.open(tmp_path / "state", serve=True) as store:
        before = store.changes.cached()
        assert before is not None
        store.keys.create("made", "default", 1.0)
        assert store.changes.cached() not in (before, None)
