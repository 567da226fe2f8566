from collections.abc import Callable
from types import ModuleType

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shared.speedups import native, out_path
from tests.shared.speedups.implementations import compares, each_implementation
from tests.shared.speedups.out_paths import EVENT, MOST_BYTES, OTHER, RESET, OutPaths, Turns, chunk

implementation = each_implementation(out_path)


def followed(implementation: ModuleType) -> OutPaths:
    """A chunked body of which nothing has come."""
    paths = OutPaths(implementation)
    paths.reader.follow(paths.path, b"head", 4)
    return paths


def test_whole_chunks_of_whole_events_go_to_the_stream(implementation: ModuleType) -> None:
    paths = followed(implementation)
    paths.receive(chunk(EVENT))
    paths.receive(chunk(b"data:") + chunk(b" 2\n\n"))
    assert list(paths.out.chunks) == [EVENT, b"data: 2\n\n"]
    assert paths.out.pending_bytes == 2 * len(EVENT)
    assert list(paths.ready) == [paths.out]
    assert (paths.woken, paths.ordinary, paths.reader.pieces, paths.reader.heard_s) == (2, [], 2, 2.0)


@pytest.mark.parametrize(
    "data",
    [
        chunk(b"half an event"),
        chunk(b'data: {"usage": {}}\n\n'),
        chunk(b"data: windows\r\n\r\n"),
        chunk(EVENT * 12),
    ],
)
def test_what_has_to_be_looked_at_goes_the_ordinary_way_and_the_body_is_followed_on(
    implementation: ModuleType, data: bytes
) -> None:
    paths = followed(implementation)
    paths.receive(data)
    assert (paths.ordinary, list(paths.out.chunks), paths.woken) == ([data], [], 0)
    paths.receive(chunk(EVENT))
    assert list(paths.out.chunks) == [EVENT]


@pytest.mark.parametrize(
    "data",
    [
        b"0\r\n\r\n",
        chunk(EVENT) + b"0\r\n\r\n",
        b"9;name=value\r\n" + EVENT + b"\r\n",
        b" 9\r\n" + EVENT + b"\r\n",
        b"9\n" + EVENT + b"\r\n",
        b"9\r\n" + EVENT + b"\n\n",
        b"9\r\n" + EVENT + b"\r\r",
        b"9\r",
        b"00000009\r\n" + EVENT + b"\r\n",
    ],
)
def test_a_body_is_no_longer_followed_behind_what_is_no_plain_chunk(
    implementation: ModuleType, data: bytes
) -> None:
    paths = followed(implementation)
    paths.receive(data)
    paths.receive(chunk(EVENT))
    assert paths.ordinary == [data, chunk(EVENT)]
    assert paths.reader.path is None
    assert not paths.out.chunks


def test_what_comes_in_pieces_goes_the_ordinary_way_as_far_as_the_next_chunk(
    implementation: ModuleType,
) -> None:
    for cut in range(3, len(chunk(EVENT))):
        paths = followed(implementation)
        pieces = [chunk(EVENT)[:cut], chunk(EVENT)[cut:], chunk(EVENT)]
        for piece in pieces:
            paths.receive(piece)
        assert paths.ordinary == pieces[:2]
        assert list(paths.out.chunks) == [EVENT]


@pytest.mark.parametrize("end", [b"x\n", b"\rx"])
def test_a_chunk_that_comes_in_pieces_must_end_as_a_line(implementation: ModuleType, end: bytes) -> None:
    paths = followed(implementation)
    for piece in (b"9\r\n" + EVENT[:4], EVENT[4:] + end, chunk(EVENT)):
        paths.receive(piece)
    assert len(paths.ordinary) == 3


def _closed(paths: OutPaths) -> None:
    paths.path.open = False


def _unread(paths: OutPaths) -> None:
    paths.unread.append(b"earlier")


def _session_over(paths: OutPaths) -> None:
    paths.session.closed = True


def _half_over(paths: OutPaths) -> None:
    paths.stream.local = OTHER


def _reset(paths: OutPaths) -> None:
    paths.stream.peer = RESET


def _waiting(paths: OutPaths) -> None:
    paths.out.waiting = True


def _bulk(paths: OutPaths) -> None:
    paths.out.interactive = False


def _full(paths: OutPaths) -> None:
    paths.out.pending_bytes = MOST_BYTES - len(EVENT) + 1


REFUSALS = [_closed, _unread, _session_over, _half_over, _reset, _waiting, _bulk, _full]


@pytest.mark.parametrize("refuse", REFUSALS)
def test_a_stream_that_cannot_take_it_leaves_it_to_the_ordinary_way(
    implementation: ModuleType, refuse: Callable[[OutPaths], None]
) -> None:
    paths = followed(implementation)
    refuse(paths)
    paths.receive(chunk(EVENT))
    assert (paths.ordinary, list(paths.out.chunks)) == ([chunk(EVENT)], [])


@pytest.mark.parametrize(
    ("sent", "head", "queued", "expected"),
    [(0, None, False, 1), (10_000, None, False, 0), (10_000, b"head", False, 1), (0, None, True, 0)],
)
def test_a_stream_gets_in_line_once_and_when_something_of_it_may_leave(
    implementation: ModuleType, sent: int, head: bytes | None, queued: bool, expected: int
) -> None:
    paths = followed(implementation)
    paths.out.credit.sent, paths.out.head, paths.out.queued = sent, head, queued
    paths.receive(chunk(EVENT))
    assert len(paths.ready) == expected
    assert paths.out.queued is (queued or bool(expected))
    assert list(paths.out.chunks) == [EVENT]


def test_a_reader_that_was_closed_gives_nothing_to_anybody(implementation: ModuleType) -> None:
    paths = followed(implementation)
    paths.reader.close()
    paths.receive(chunk(EVENT))
    paths.reader.follow(paths.path, b"", 0)
    paths.receive(chunk(EVENT))
    assert (paths.ordinary, list(paths.out.chunks)) == ([], [])


def test_a_body_begins_within_what_has_come(implementation: ModuleType) -> None:
    paths = OutPaths(implementation)
    for start in (-1, 5):
        with pytest.raises(ValueError, match="outside"):
            paths.reader.follow(paths.path, b"head", start)


PIECES = st.sampled_from(
    [EVENT, b"half", b'{"usage"}\n\n', b"\n\n", b"x" * 60 + b"\n\n", b'{"usa' + b"g" * 9 + b'"}\n\n']
)


@st.composite
def bodies(draw: st.DrawFn) -> list[bytes]:
    """A body, whole or spoiled, cut anywhere."""
    body = b"".join(map(chunk, draw(st.lists(PIECES, max_size=8))))
    if draw(st.booleans()) and body:
        place = draw(st.integers(0, len(body) - 1))
        body = body[:place] + draw(st.binary(max_size=3)) + body[place + draw(st.integers(0, 2)) :]
    cuts = sorted(draw(st.lists(st.integers(0, len(body)), max_size=6)))
    return [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]


@compares
@given(data=bodies(), refusal=st.sampled_from([None, None, *REFUSALS]))
@example(data=[b"ffffffffffffffff\r\n"], refusal=None)
@example(data=[b"7fffffff\r\n"], refusal=None)
def test_both_implementations_do_the_same(
    data: list[bytes], refusal: Callable[[OutPaths], None] | None
) -> None:
    ours, reference = followed(native), followed(out_path)
    for number, piece in enumerate(data):
        if refusal is not None and number == 1:
            refusal(ours)
            refusal(reference)
        ours.receive(piece)
        reference.receive(piece)
        assert ours.facts() == reference.facts()


KINDS = st.tuples(
    st.sampled_from([0, 0, 10, 300, 900]),
    st.sampled_from([5, 400, 10_000]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([False, False, False, True]),
)


@compares
@given(
    kinds=st.lists(KINDS, max_size=6),
    left_bytes=st.sampled_from([-1, 0, 1, 500, 10_000]),
    most_bytes=st.sampled_from([0, 299, 10_000]),
)
def test_both_implementations_take_the_same_turns(
    kinds: list[tuple[int, int, bool, bool, bool]], left_bytes: int, most_bytes: int
) -> None:
    ours, reference = Turns(native, kinds), Turns(out_path, kinds)
    assert ours.take(left_bytes, most_bytes) == reference.take(left_bytes, most_bytes)


def test_turns_are_taken_in_order_up_to_one_that_is_out_of_the_ordinary(implementation: ModuleType) -> None:
    ordinary, beyond = (3, 100, False, True, False), (3, 2, True, False, False)
    turns = Turns(implementation, [ordinary, ordinary, beyond, ordinary])
    turns.take(10_000, 1_000)
    frames = [b"\x02" + bytes([0, 0, 0, number, 0, 0, 0, 3, 0, 0, 0]) + b"end" for number in (1, 2)]
    assert b"".join(turns.pieces) == b"".join(frames)
    assert turns.ended == [1, 2]
    assert list(turns.ready) == turns.streams[2:]
