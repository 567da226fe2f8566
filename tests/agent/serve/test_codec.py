"""Decoding and encoding, with what goes in and out in parcels."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from agent.serve import BadRequest, Model, ModelRequest, ModelResponse
from agent.serve.codec import Codec, event, to_json
from agent.serve.messages import DecodeOrder, EncodeOrder, JobResult, ModelFault
from agent.serve.parcels import ParcelWriter
from shared.process.server_sent_events import ServerSentEventReader


class Played(Model):
    def decode(self, request: ModelRequest) -> Any:
        if request.body == b"bad":
            raise BadRequest("This is bad.", param="body")
        if request.body == b"memory":
            raise MemoryError
        return [request.path, request.query, request.method, request.model, request.headers, request.body]

    def length(self, item: Any) -> float:
        return len(item[5])

    def encode(self, output: Any) -> Any:
        if isinstance(output, Exception):
            raise output
        return output


@pytest.fixture
def writer(tmp_path: Path) -> ParcelWriter:
    return ParcelWriter(tmp_path, "p1")


def decoded(writer: ParcelWriter, body: bytes) -> JobResult:
    order = DecodeOrder(1, "/predict", "a=b", "POST", {"x": "y"}, "m", writer.of_parts([body]))
    return Codec(Played(), writer).run(order)


def encoded(writer: ParcelWriter, output: Any, *, streamed: bool = False) -> JobResult:
    return Codec(Played(), writer).run(EncodeOrder(1, writer.pack(output), streamed))


def body_of(result: JobResult) -> bytes:
    assert not isinstance(result.result, ModelFault), result.result
    return bytes(result.result.parts()[0])


def test_decode_gets_the_request_and_gives_item_and_length(writer: ParcelWriter) -> None:
    result = decoded(writer, b"body")
    assert not isinstance(result.result, ModelFault)
    assert result.result.unpack() == ["/predict", "a=b", "POST", "m", {"x": "y"}, b"body"]
    assert result.length == 4.0


def test_what_decode_refuses_keeps_its_words(writer: ParcelWriter) -> None:
    fault = decoded(writer, b"bad").result
    assert fault == ModelFault("refused", "This is bad.", 400, "invalid_request_error", "bad_request", "body")


def test_memory_that_runs_out_is_told_apart(writer: ParcelWriter) -> None:
    fault = decoded(writer, b"memory").result
    assert isinstance(fault, ModelFault)
    assert (fault.kind, fault.words) == ("memory", "decode raised MemoryError")


@pytest.mark.parametrize(
    ("output", "body", "content_type"),
    [
        ({"a": 1}, b'{"a":1}', "application/json"),
        ([1.5, None], b"[1.5,null]", "application/json"),
        (b"\x00", b"\x00", "application/octet-stream"),
        ("é", "é".encode(), "text/plain; charset=utf-8"),
        (ModelResponse(b"x", content_type="image/png"), b"x", "image/png"),
    ],
)
def test_what_encode_returns_says_its_type(
    writer: ParcelWriter, output: Any, body: bytes, content_type: str
) -> None:
    result = encoded(writer, output)
    assert body_of(result) == body
    assert dict(result.headers) == {"content-type": content_type}
    assert result.status == 200


def test_fields_of_the_connection_are_the_servers(writer: ParcelWriter) -> None:
    headers = {"Content-Length": "99", "transfer-encoding": "chunked", "Connection": "close", "X-A": "1"}
    result = encoded(writer, ModelResponse(b"x", headers=headers))
    assert dict(result.headers) == {"content-type": "application/octet-stream", "x-a": "1"}


def test_arrays_and_tensors_are_written_as_lists() -> None:
    numpy, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
    value = {"a": numpy.arange(2, dtype="float32"), "b": numpy.float32(1.5), "c": torch.ones(2, 1)}
    assert orjson.loads(to_json(value)) == {"a": [0.0, 1.0], "b": 1.5, "c": [[1.0], [1.0]]}


@pytest.mark.parametrize(
    "output",
    [
        ModelResponse("x", status=99),
        ModelResponse("x", headers={"a b": "c"}),
        ModelResponse("x", headers={"a": "b\r\nc: d"}),
        ValueError("encode is out of order"),
    ],
)
def test_what_http_cannot_carry_is_a_fault(writer: ParcelWriter, output: Any) -> None:
    fault = encoded(writer, output).result
    assert isinstance(fault, ModelFault)
    assert fault.kind == "raised"


def test_pieces_of_a_stream_are_events(writer: ParcelWriter) -> None:
    assert body_of(encoded(writer, {"a": 1}, streamed=True)) == b'data: {"a":1}\n\n'
    assert event("two\nlines") == b"data: two\ndata: lines\n\n"
    assert event("") == b"data: \n\n"
    assert event(b"raw") == event(ModelResponse(b"raw")) == b"raw"


@pytest.mark.parametrize(
    "text",
    ["", "\n", "a line\n", "\n\n", "two\n\nlines", " in\tblanks ", "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg"],
)
def test_text_in_a_stream_is_read_as_it_was_said(text: str) -> None:
    (read,) = ServerSentEventReader().feed(event(text))
    assert read.data == text.encode()
