"""A number tells of every change, and a request that compares it reads no database."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.storage import Store, changes
from gateway.storage.changes import KNOWN_S, ChangeCounter
from gateway.storage.errors import StateBusy, StateUnreachable
from tests.support.race import elsewhere


class Source:
    """A database's number, and who read it."""

    def __init__(self) -> None:
        self.number = 1
        self.broken = False
        self.away = False
        self.now_s = 0.0
        self.readers: list[int] = []

    def read(self) -> int:
        self.readers.append(threading.get_ident())
        if self.broken:
            raise StateBusy("stuck")
        if self.away:
            raise StateUnreachable("away")
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


def _until_set(stopping: threading.Event) -> None:
    stopping.wait()


def test_one_thread_looks_however_often_it_is_told_to() -> None:
    counter = ChangeCounter(lambda: 1, wait=lambda _at_most_s, stopping: _until_set(stopping))
    before = set(threading.enumerate())
    counter.start_polling()
    counter.start_polling()
    begun = [thread for thread in threading.enumerate() if thread not in before and thread.name == "changes"]
    counter.close()
    assert len(begun) == 1
    assert not begun[0].is_alive()


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


STALE_S = 120.0


@pytest.fixture
def patient(source: Source) -> Iterator[ChangeCounter]:
    """Its thread never gets to look, and a server may be away for a while."""
    counter = ChangeCounter(
        source.read, source.clock, look_s=1.0, known_s=1.0, stale_s=STALE_S, wait=until_told
    )
    counter.start_polling()
    yield counter
    counter.close()


def until_told(_: float, stopping: threading.Event) -> None:
    stopping.wait()


def test_while_the_server_is_away_the_latest_number_is_good_for_a_while(
    source: Source, patient: ChangeCounter
) -> None:
    source.away = True
    source.now_s = 2.0
    assert patient.cached() is None, "it is not known yet that the server is away"
    assert patient.read() == patient.cached() == 1
    assert isinstance(patient.away, StateUnreachable)
    source.now_s = STALE_S
    assert patient.read() == patient.cached() == 1
    source.now_s = STALE_S + 0.1
    assert patient.cached() is None
    with pytest.raises(StateUnreachable, match="away"):
        patient.read()
    source.away, source.number = False, 2
    source.now_s += 1.0
    assert patient.read() == patient.cached() == 2
    assert patient.away is None


def test_a_server_that_is_away_is_not_asked_again_before_the_next_look(
    source: Source, patient: ChangeCounter
) -> None:
    source.away = True
    source.now_s = 2.0
    patient.read()
    asked = len(source.readers)
    source.now_s = 2.9
    patient.read()
    assert len(source.readers) == asked
    source.now_s = 3.0
    patient.read()
    assert len(source.readers) == asked + 1


def test_a_server_that_may_not_be_away_is_missed_at_once(source: Source) -> None:
    counter = ChangeCounter(source.read, source.clock, stale_s=0.0, wait=until_told)
    counter.start_polling()
    source.away = True
    source.now_s = 0.5
    assert counter.cached() is None
    with pytest.raises(StateUnreachable):
        counter.read()
    counter.close()


def test_other_failures_are_no_reason_to_go_on_with_old_news(source: Source, patient: ChangeCounter) -> None:
    source.broken = True
    source.now_s = 2.0
    with pytest.raises(StateBusy):
        patient.read()
    assert patient.cached() is None


def test_a_command_does_not_go_on_with_old_news(source: Source) -> None:
    counter = ChangeCounter(source.read, source.clock, stale_s=STALE_S)
    counter.read()
    source.away = True
    with pytest.raises(StateUnreachable):
        counter.cached()


def test_news_end_a_pause_of_the_thread(source: Source) -> None:
    news, looked = threading.Event(), threading.Event()

    def wait(_: float, stopping: threading.Event) -> None:
        while not news.wait(0.01) and not stopping.is_set():
            pass
        news.clear()

    def read() -> int:
        if threading.current_thread().name == "changes":
            looked.set()
        return 1

    counter = ChangeCounter(read, look_s=3600.0, wait=wait)
    counter.start_polling()
    assert not looked.wait(0.05)
    news.set()
    assert looked.wait(30)
    counter.close()


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


def test_who_listens_is_told_of_another_number_until_that_is_ended(source: Source) -> None:
    heard, told = threading.Event(), 0

    def listener() -> None:
        nonlocal told
        told += 1
        heard.set()

    counter = ChangeCounter(source.read, look_s=0.001)
    end = counter.listen(listener)
    counter.start_polling()
    try:
        for number in (2, 3):
            heard.clear()
            source.number = number
            assert heard.wait(60)
        looks = len(source.readers)
        while len(source.readers) < looks + 3:
            time.sleep(0.001)
        assert told == 2, "once for each"
        end()
        source.number, looks = 4, len(source.readers)
        while len(source.readers) < looks + 3:
            time.sleep(0.001)
        assert told == 2
    finally:
        counter.close()
