"""The queue of what came of an answer: order, steps, and what small pieces cost."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.dispatch.response_buffers import ChunkQueue
from gateway.dispatch.response_buffers.chunks import BLOCK_BYTES, PIECES


@given(st.lists(st.binary(min_size=1, max_size=40_000), max_size=30), st.integers(1, 100_000))
def test_chunks_come_out_in_order_and_in_steps(pieces: list[bytes], most_bytes: int) -> None:
    queue, out = ChunkQueue(), b""
    for piece in pieces:
        queue.put(piece)
    while taken := queue.take(most_bytes):
        size_bytes = sum(map(len, taken))
        assert size_bytes <= max(most_bytes, len(taken[0])) or size_bytes < BLOCK_BYTES
        out += b"".join(taken)
    assert out == b"".join(pieces)
    assert not queue


def test_single_bytes_that_wait_are_joined() -> None:
    queue = ChunkQueue()
    for _ in range(10 * PIECES):
        queue.put(b"x")
    assert len(queue.take(1 << 20)) == 10
