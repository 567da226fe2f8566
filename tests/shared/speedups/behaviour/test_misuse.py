"""What is passed may be wrong, and may call back while it is used: that ends in an error or in what the
functions in Python do, and never in memory of somebody else."""

import functools
import gc
import os
import subprocess
import sys
import weakref
from collections import deque
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from shared.speedups import body_path, native, out_path, websocket_frames
from tests.shared.speedups.bodies import BODY, OTHER, RESET, Table, frame
from tests.shared.speedups.implementations import compares, each_implementation
from tests.shared.speedups.out_paths import EVENT, OutPaths, Turns, chunk

LAST = (1 << 63) - 1

body_paths = each_implementation(body_path)
out_paths = each_implementation(out_path)
messages = each_implementation(websocket_frames)


class Number:
    """Counts how often it is asked what it is."""

    asked = 0

    def __index__(self) -> int:
        self.asked += 1
        return 1


class Slotted:
    """A stream whose attributes are slots, behind others."""

    __slots__ = ("a", "b", "c", "credit", "d", "e", "f", "local", "path", "peer")

    def __init__(self) -> None:
        self.peer, self.local, self.path = BODY, OTHER, None
        self.credit = SimpleNamespace(received=0, granted=90)


class Asked:
    """A stream that does something when it is asked for its peer, with other slots than those."""

    __slots__ = ("credit", "done", "local", "path", "s", "t", "u", "v", "w", "x")

    def __init__(self, done: Any) -> None:
        self.local, self.path, self.done = OTHER, None, done
        self.credit = SimpleNamespace(received=0, granted=90)

    @property
    def peer(self) -> object:
        self.done()
        return BODY


def foreign(*names: str) -> Any:
    """An object whose class has slots of another class, by their names."""
    return type("Foreign", (), {"__slots__": (), **{name: Slotted.__dict__[name] for name in names}})()


def test_a_start_beyond_every_message_is_its_end(body_paths: ModuleType) -> None:
    assert Table(body_paths).receive(frame(2, b"x"), sys.maxsize) == sys.maxsize


@pytest.mark.parametrize("event_type", [object, int, dict, os.stat_result])
def test_an_event_is_a_tuple(
    body_paths: ModuleType, event_type: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.shared.speedups.bodies.Came", event_type)
    table = Table(body_paths)
    with pytest.raises(TypeError):
        table.receive(frame(2, b"x"))
    assert table.events == []


def test_a_stream_may_be_forgotten_while_it_is_asked(body_paths: ModuleType) -> None:
    table = Table(body_paths)
    table.streams[2] = Asked(table.streams.clear)
    message = frame(2, b"x")
    assert table.receive(message) == len(message)
    assert (table.events, table.streams) == ([(2, b"x")], {})


def test_streams_of_another_class_may_be_served_meanwhile(body_paths: ModuleType) -> None:
    table, inner = Table(body_paths), Table(body_paths)
    inner.streams[2] = Slotted()
    table.streams[2] = Asked(lambda: inner.receive(frame(2, b"inner")))
    table.receive(frame(2, b"outer"))
    assert (inner.events, table.events) == ([(2, b"inner")], [(2, b"outer")])


def test_a_slot_of_another_class_is_none_of_a_stream(body_paths: ModuleType) -> None:
    table = Table(body_paths)
    table.streams[2] = foreign("peer", "local", "credit", "path")
    with pytest.raises(TypeError, match="peer"):
        table.receive(frame(2, b"x"))


def test_counts_at_the_end_of_their_range_are_beyond_every_credit(body_paths: ModuleType) -> None:
    table = Table(body_paths)
    table.streams[2].credit.received = table.streams[2].credit.granted = LAST
    assert table.receive(frame(2, b"x")) == 0
    table.streams[2].credit.received = 0
    table.session.received = table.session.granted = LAST
    assert table.receive(frame(2, b"x")) == 0


@compares
def test_a_count_stays_at_the_end_of_its_range() -> None:
    path = native.BodyPath(print, SimpleNamespace(write_paused=False))
    path.open, path.sent_bytes = True, LAST - 1
    assert path.take(b"a\n\n")
    assert (path.sent_bytes, path.taken_bytes) == (LAST, 3)


@compares
def test_nobody_is_called_after_an_error() -> None:
    number, counts = Number(), SimpleNamespace(received=0, granted=9, sent=0, limit=9)
    functions: Any = native
    states = (BODY, OTHER, RESET)
    with pytest.raises(OverflowError):
        functions.receive_bodies(b"", 1 << 70, {}, counts, [], tuple, states, number, number)
    with pytest.raises(OverflowError):
        functions.take_turns(deque(), [], [], counts, 1 << 70, number, number)
    with pytest.raises(OverflowError):
        functions.read_ready(0, {}, 1 << 70, number)
    assert number.asked == 0


@compares
def test_a_deleted_callback_is_an_error() -> None:
    path = native.BodyPath(print, SimpleNamespace(write_paused=False))
    path.open, path.descriptor = True, 0
    del path.buffered_bytes
    assert path.take(b"a\n\n")
    with pytest.raises(AttributeError, match="buffered_bytes"):
        path.flush()
    assert path.waiting == [b"a\n\n"]


def test_a_callback_may_replace_itself(body_paths: ModuleType) -> None:
    written: list[bytes] = []
    path = body_paths.BodyPath(written.append, SimpleNamespace(write_paused=False))

    def replaced() -> int:
        path.buffered_bytes = lambda: 1
        return 1

    path.open, path.buffered_bytes, path.descriptor = True, functools.lru_cache(replaced), 0
    assert path.take(b"a\n\n")
    path.flush()
    assert written == [b"3\r\na\n\n\r\n"]


class Holder:
    """Is part of a cycle with a path, and can be reached again while the collector takes it apart."""

    path: Any
    parts: list[Any]

    def __init__(self, found: list[Any], reached: Any) -> None:
        self.found, self.reached, self.itself = found, reached, self

    def __del__(self) -> None:
        self.found += (weakref.ref(self), weakref.ref(self.parts[0], self.reached))


class Part:
    """Can be referred to weakly."""


@compares
def test_a_path_may_be_called_while_the_collector_takes_it_apart() -> None:
    found: list[Any] = []
    errors: list[AttributeError] = []

    def reached(_: Any) -> None:
        holder = found[0]()
        if holder is None:  # not to be found in newer interpreters
            return
        holder.path.flush()
        try:
            holder.path.take(b"a\n\n")
        except AttributeError as error:
            errors.append(error)

    gc.disable()
    try:
        path = native.BodyPath(print, SimpleNamespace(write_paused=False))
        path.open = True
        parts: list[Any] = [Part()]
        holder = Holder(found, reached)
        holder.path, holder.parts = path, parts
        parts.append(holder)
        del path, parts, holder
        gc.collect()
    finally:
        gc.enable()
    assert found
    assert all("flow" in str(error) for error in errors)


_FOREIGN_SLOT = """
from types import SimpleNamespace
from shared.speedups import OutPath

class Slotted:
    __slots__ = ("a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "local")

class Foreign:
    __slots__ = ()
    local = Slotted.local

path = OutPath(Foreign(), SimpleNamespace(closed=False), None, [], (None, None), 9)
path.open = True
try:
    path.take(b"a\\n\\n")
except TypeError as error:
    print(error)
"""


def test_a_slot_of_another_class_is_none_of_an_outgoing_stream() -> None:
    command = [
        sys.executable,
        "-c",
        _FOREIGN_SLOT,
    ]  # a process learns each slot from the first object it sees
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "'local'" in done.stdout


class Unread:
    """Does something when it is asked whether there is anything."""

    def __init__(self, done: Any) -> None:
        self.done = done

    def __len__(self) -> int:
        self.done()
        return 0


def test_a_path_may_be_forgotten_while_it_is_given_something(out_paths: ModuleType) -> None:
    paths = OutPaths(out_paths)
    reader: Any = out_paths.ChunkReader(
        paths.ordinary.append, paths.now, Unread(lambda: setattr(reader, "path", None))
    )
    reader.follow(paths.path, b"", 0)
    reader(chunk(EVENT))
    reader(chunk(EVENT))
    assert (list(paths.out.chunks), paths.ordinary, reader.pieces) == ([EVENT], [chunk(EVENT)], 1)


def test_a_reader_may_be_closed_while_it_reads(out_paths: ModuleType) -> None:
    paths = OutPaths(out_paths)
    reader: Any = out_paths.ChunkReader(paths.ordinary.append, paths.now, Unread(lambda: reader.close()))
    reader.follow(paths.path, b"", 0)
    paths.path.open = False
    reader(chunk(EVENT))
    assert (list(paths.out.chunks), paths.ordinary, reader.pieces) == ([], [], 0)


class Ended:
    """A stream that calls back when it ends."""

    def __init__(self, done: Any) -> None:
        self.done = done

    def __del__(self) -> None:
        self.done()


def test_the_end_of_a_path_may_make_a_reader_follow_another(out_paths: ModuleType) -> None:
    paths = OutPaths(out_paths)
    reader: Any = out_paths.ChunkReader(paths.ordinary.append, paths.now, paths.unread)
    stream = Ended(lambda: reader.follow(paths.path, b"3\r\na", 0))
    path = out_paths.OutPath(stream, paths.session, paths, paths.ready, (BODY, RESET), 100)
    reader.follow(path, b"2000\r\n", 0)
    del path, stream
    given = [b"x" * 0x2000 + b"zz", b"\n\n\r\n", chunk(EVENT)]
    for data in given:
        reader(data)
    assert paths.ordinary == given[:2]
    assert list(paths.out.chunks) == [EVENT]


def test_outgoing_counts_at_the_end_of_their_range_are_beyond_every_limit(out_paths: ModuleType) -> None:
    paths = OutPaths(out_paths)
    paths.out.pending_bytes = LAST
    assert not paths.path.take(EVENT)
    turns = Turns(out_paths, [(10, LAST, False, False, False)])
    turns.streams[0].credit.sent = LAST
    turns.take(1_000, 1_000)
    assert (turns.pieces, len(turns.ready)) == ([], 1)


@compares
def test_a_negative_size_is_refused_before_anything_is_taken() -> None:
    turns = Turns(native, [(10, 100, True, False, False)])
    turns.streams[0].pending_bytes = -1
    with pytest.raises(ValueError, match="header"):
        turns.take(1_000, 1_000)
    assert (turns.pieces, len(turns.ready)) == ([], 1)


def test_no_message_is_shorter_than_nothing(messages: ModuleType) -> None:
    wire = messages.frame_messages([b"", b"one"], b"")
    assert messages.cut_messages(wire, 0, False, -1) == ([], 0)
