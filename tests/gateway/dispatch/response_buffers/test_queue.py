"""One answer's bytes on their way through the file: in order, each once, and nothing left of them."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dispatch.response_buffers.file import BLOCK_BYTES
from gateway.dispatch.response_buffers.queue import WRITE_BYTES, SpillQueue
from gateway.dispatch.response_buffers.space import REST_S
from shared.protocol.limits import MIB
from tests.gateway.dispatch.response_buffers.behaviour.workers import HeldWorker, Opened, space
from tests.support.clock import ManualClock

DIRECTORY = Path(tempfile.gettempdir())


def read_all(queue: SpillQueue, worker: HeldWorker) -> bytes:
    out = b""
    while queue:
        queue.fetch(lambda: None)
        worker.catch_up()
        out += b"".join(queue.take(1 << 16))
    return out


def test_what_is_being_written_may_be_read_meanwhile(tmp_path: Path) -> None:
    worker, told = HeldWorker(), list[int]()
    there = space(tmp_path, MIB, worker=worker)
    queue = SpillQueue(there, "k", "t")
    queue.put(b"one")
    assert queue.write(told.append)
    queue.put(b"two")
    assert (queue.ready, queue.take(100), queue.take(100)) == (True, [b"one"], [b"two"])
    worker.catch_up()
    assert (told, bool(queue), there.used_bytes) == ([0], False, 0)


def test_a_write_that_fails_loses_nothing(tmp_path: Path) -> None:
    worker, opened, told = HeldWorker(), Opened(), list[int]()
    there = space(tmp_path, MIB, worker=worker, opened=opened)
    queue = SpillQueue(there, "k", "t")
    queue.put(b"one")
    opened.broken_for = "write"
    assert queue.write(told.append)
    queue.put(b"two")
    worker.catch_up()
    assert (told, there.used_bytes, queue.in_file) == ([0], 0, False)
    assert not queue.write(told.append), "it rests"
    assert read_all(queue, worker) == b"onetwo"


def test_what_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    opened = Opened()
    there = space(tmp_path, MIB, opened=opened)
    queue = SpillQueue(there, "k", "t")
    queue.put(b"one")
    queue.write(lambda size_bytes: None)
    opened.broken_for = "read"
    queue.fetch(lambda: None)
    assert queue.ready
    with pytest.raises(OSError, match="could not be read"):
        queue.take(100)
    queue.close()
    assert there.used_bytes == 0


def test_no_block_is_given_back_while_it_is_written(tmp_path: Path) -> None:
    worker = HeldWorker()
    there = space(tmp_path, MIB, worker=worker)
    queue = SpillQueue(there, "k", "t")
    queue.put(b"one")
    queue.write(lambda size_bytes: None)
    queue.close()
    assert there.used_bytes == BLOCK_BYTES
    worker.catch_up()
    assert there.used_bytes == 0


def test_no_block_is_given_back_while_it_is_read(tmp_path: Path) -> None:
    """Another answer's bytes would be found there, and the disk be taken for broken."""
    worker = HeldWorker()
    there = space(tmp_path, MIB, worker=worker)
    queue, other = SpillQueue(there, "k", "t"), SpillQueue(there, "k2", "t2")
    for piece in (b"one", b"two"):
        queue.put(piece)
        queue.write(lambda size_bytes: None)
        worker.catch_up()
    queue.fetch(lambda: None)
    queue.close()
    assert there.used_bytes == BLOCK_BYTES
    other.put(b"another")
    assert other.write(lambda size_bytes: None)
    worker.waiting.rotate()  # one thread writes before the other has read
    worker.catch_up()
    assert there.used_bytes == BLOCK_BYTES
    other.put(b"more")
    assert other.write(lambda size_bytes: None)
    worker.catch_up()
    assert read_all(other, worker) == b"anothermore"
    assert there.used_bytes == 0


@given(st.data())
def test_bytes_come_out_in_order_whatever_the_disk_does(data: st.DataObject) -> None:
    opened = Opened()
    try:
        goes_through(data, opened)
        assert opened.open == 0
    finally:
        for file in opened.files:
            file.close()


def goes_through(data: st.DataObject, opened: Opened) -> None:
    worker, clock = HeldWorker(), ManualClock()
    there = space(DIRECTORY, 4 * MIB, worker=worker, opened=opened, clock=lambda: clock.now_s)
    queue = SpillQueue(there, "k", "t")
    put, got, spilled = b"", b"", 0

    def wrote(size_bytes: int) -> None:
        nonlocal spilled
        spilled += size_bytes

    for step in data.draw(st.lists(st.sampled_from("pppwwdddftttx"), max_size=60)):
        if step == "p":
            piece = bytes([len(put) % 251]) * data.draw(st.sampled_from([1, 3000, 20_000, WRITE_BYTES]))
            queue.put(piece)
            put += piece
        elif step == "w":
            clock.advance(REST_S)
            queue.write(wrote)
        elif step == "d":
            worker.step()
        elif step == "f":
            queue.fetch(lambda: None)
        elif step == "x":
            opened.broken_for = "" if opened.broken_for else "write"
        elif queue.ready:
            got += b"".join(queue.take(1 << 16))
        assert put.startswith(got)
    if data.draw(st.booleans()):
        assert got + read_all(queue, worker) == put
    queue.close()
    worker.catch_up()
    assert spilled <= len(put)
    assert there.used_bytes == 0
