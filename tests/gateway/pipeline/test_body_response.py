from gateway.dispatch.response_stream import READ_BYTES
from gateway.pipeline.body_response import BodyResponse


def test_a_short_body_is_taken_whole_and_once() -> None:
    response = BodyResponse(b"short")
    assert response.take_whole() == b"short"
    assert response.take_whole() == b""


async def test_a_long_body_is_read_as_one_chunk_and_then_ends() -> None:
    body = bytes(READ_BYTES + 1)
    response = BodyResponse(body)
    assert response.take_whole() is None
    assert await response.next_chunks() == [body]
    assert await response.next_chunks() == []


async def test_an_abort_drops_what_is_left() -> None:
    response = BodyResponse(b"short")
    response.abort()
    assert await response.next_chunks() == []
