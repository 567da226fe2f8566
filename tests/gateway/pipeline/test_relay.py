import orjson
import pytest

from gateway.dispatch.response_stream import READ_BYTES, Sink
from gateway.domain.errors import (
    DeadlineExceeded,
    EngineError,
    RequestError,
    ShuttingDown,
    StreamBroken,
)
from gateway.pipeline.relay import (
    REFUSAL_BYTES,
    WRITE_BYTES,
    HeaderList,
    as_request_error,
    engine_refusal,
    relay,
    relayed_headers,
)
from shared.protocol.errors import ErrorCode
from shared.protocol.messages import Headers
from tests.gateway.api.support import EVENTS, FakeResponse


class Answer:
    """Records what is relayed; ``gate`` tells how much the engine was granted at each write."""

    def __init__(self, response: FakeResponse, *, started: bool = False) -> None:
        self.started = started
        self.head: tuple[int, dict[bytes, bytes], bool] | None = None
        self.writes: list[tuple[bytes, int]] = []
        self.settled = self.ended = self.followed = False
        self.comments: object | None = object()
        self.direct: Sink | None = None
        self.takes_whole = False
        self._response = response

    tells_waiting = False

    async def settle(self) -> None:
        self.settled, self.comments = True, None

    async def end_waiting(self) -> None:
        pass

    async def start(
        self, status: int, headers: HeaderList, *, event_stream: bool = False, body_follows: bool = False
    ) -> None:
        self.followed = body_follows
        self.head = (status, dict(headers), event_stream)

    def send_whole(self, status: int, headers: HeaderList, data: bytes) -> bool:
        """Only where the reply is to be one that need not wait."""
        if not self.takes_whole:
            return False
        self.head = (status, dict(headers), False)
        self.writes.append((data, self._response.consumed_bytes))
        self.ended = True
        return True

    async def write(self, data: bytes) -> None:
        self.writes.append((data, self._response.consumed_bytes))

    async def end(self, data: bytes = b"") -> None:
        if data:
            await self.write(data)
        self.ended = True


async def relayed(
    response: FakeResponse, *, started: bool = False, facts: bool = True, takes_whole: bool = False
) -> Answer:
    answer = Answer(response, started=started)
    answer.takes_whole = takes_whole
    await relay(response, answer, facts=facts)
    assert not response.aborted, "there is nothing left to give up"
    assert answer.settled
    return answer


async def test_everything_that_has_arrived_goes_out_in_one_write() -> None:
    answer = await relayed(FakeResponse(chunks=(b"a", b"b", b"c")))
    assert [data for data, _ in answer.writes] == [b"abc"]
    assert answer.ended


async def test_a_body_that_is_all_there_goes_out_with_its_head_and_its_end() -> None:
    response = FakeResponse(chunks=(b"abc",))
    response.next_chunks = None  # type: ignore[method-assign,assignment] # nobody asks
    answer = await relayed(response)
    assert answer.head is not None
    assert answer.followed
    assert [data for data, _ in answer.writes] == [b"abc"]
    assert answer.ended


async def test_a_reply_that_takes_it_whole_gets_it_in_one_call() -> None:
    response = FakeResponse(201, chunks=(b"abc",))
    answer = await relayed(response, takes_whole=True)
    assert answer.head is not None
    assert answer.head[0] == 201
    assert answer.writes == [(b"abc", 0)]
    assert response.consumed_bytes == 3
    assert not answer.followed, "it was not begun in the other way, too"


async def test_a_stream_of_events_is_not_given_whole() -> None:
    response = FakeResponse(chunks=(b"data: x\n\n",), headers=(("content-type", "text/event-stream"),))
    answer = await relayed(response, takes_whole=True)
    assert answer.head is not None
    assert answer.head[2], "said to be events"
    assert answer.followed


@pytest.mark.parametrize(
    "response",
    [FakeResponse(204, chunks=(b"not sent",)), FakeResponse(chunks=(b"x" * (READ_BYTES + 1),))],
    ids=["bodiless", "long"],
)
async def test_any_other_body_is_read_bit_by_bit(response: FakeResponse) -> None:
    answer = await relayed(response)
    assert not answer.followed
    assert all(len(data) <= READ_BYTES for data, _ in answer.writes)
    assert answer.ended


async def test_credit_is_given_after_the_client_took_the_bytes() -> None:
    response = FakeResponse(chunks=(b"abc",))
    answer = await relayed(response)
    assert answer.writes == [(b"abc", 0)]
    assert response.consumed_bytes == 3


async def test_the_facts_are_told_in_headers() -> None:
    answer = await relayed(FakeResponse(201))
    assert answer.head is not None
    status, headers, _ = answer.head
    assert status == 201
    assert headers[b"x-trunkline-agent"] == b"gpu-1"
    assert headers[b"x-trunkline-queue-ms"] == b"12.5"
    assert headers[b"x-trunkline-attempts"] == b"1"


async def test_the_facts_can_be_kept_back() -> None:
    answer = await relayed(FakeResponse(), facts=False)
    assert answer.head is not None
    assert not any(name.startswith(b"x-trunkline") for name in answer.head[1])


async def test_a_break_is_raised_as_an_error_and_the_engine_let_go() -> None:
    response = FakeResponse(chunks=(b"half",), ended=False)
    response.break_off(StreamBroken(ErrorCode.ENGINE_FAILED, "The engine died."))
    with pytest.raises(EngineError, match="The engine died"):
        await relay(response, Answer(response))
    assert response.aborted


async def test_a_stream_that_was_promised_goes_on_without_a_second_head() -> None:
    answer = await relayed(FakeResponse(headers=EVENTS, chunks=(b"data: 1\n\n",)), started=True)
    assert answer.head is None
    assert answer.ended


@pytest.mark.parametrize("started", [False, True])
async def test_what_else_is_to_be_told_is_a_header_or_a_comment_where_the_head_is_out(started: bool) -> None:
    response = FakeResponse(headers=EVENTS, chunks=(b"data: 1\n\n",))
    answer = Answer(response, started=started)
    await relay(response, answer, more=[(b"x-trunkline-fallback", b"light")])
    written = b"".join(data for data, _ in answer.writes)
    if started:
        assert written == b": x-trunkline-fallback: light\n\ndata: 1\n\n"
    else:
        assert answer.head is not None
        assert (answer.head[1][b"x-trunkline-fallback"], written) == (b"light", b"data: 1\n\n")


async def test_a_refusal_after_a_promise_becomes_its_error() -> None:
    body = b'{"error":{"message":"too long","type":"invalid_request_error","code":"context_length_exceeded"}}'
    response = FakeResponse(400, chunks=(body,))
    with pytest.raises(RequestError) as caught:
        await relay(response, Answer(response, started=True))
    error = caught.value
    assert (error.status, error.message, error.code) == (400, "too long", "context_length_exceeded")
    assert response.consumed_bytes == len(body)
    assert response.aborted


async def test_no_more_of_a_refusal_is_read_than_is_needed() -> None:
    response = FakeResponse(500, chunks=(b"x" * REFUSAL_BYTES,), ended=False)
    with pytest.raises(RequestError):
        await relay(response, Answer(response, started=True))


async def test_an_answer_that_is_no_stream_after_a_promise_is_an_engine_error() -> None:
    response = FakeResponse(200, (("content-type", "application/json"),), (b"{}",))
    with pytest.raises(EngineError):
        await relay(response, Answer(response, started=True))


PACKED = (*EVENTS, ("content-encoding", "gzip"))


async def test_nothing_is_added_to_a_stream_that_its_engine_compressed() -> None:
    answer = await relayed(FakeResponse(headers=(*PACKED, ("content-length", "6")), chunks=(b"packed",)))
    assert answer.head is not None
    status, headers, event_stream = answer.head
    assert (status, event_stream) == (200, False), "an error at its end would be no part of it"
    assert (headers[b"content-encoding"], headers[b"content-length"]) == (b"gzip", b"6")
    assert [data for data, _ in answer.writes] == [b"packed"]


async def test_a_compressed_stream_after_a_promise_of_a_plain_one_is_an_engine_error() -> None:
    response = FakeResponse(headers=PACKED, chunks=(b"packed",))
    with pytest.raises(EngineError, match="compressed"):
        await relay(response, Answer(response, started=True))
    assert response.consumed_bytes == 0


def test_headers_of_the_connection_are_the_servers_own_business() -> None:
    headers = (
        ("content-type", "application/json"),
        ("connection", "close"),
        ("transfer-encoding", "chunked"),
        ("server", "vllm"),
        ("date", "today"),
        ("x-request-id", "theirs"),
        ("x-trunkline-agent", "a lie"),
        ("content-length", "12"),
        ("x-ok", "yes"),
        ("bad(name", "x"),
    )
    assert relayed_headers(headers, event_stream=False) == [
        (b"content-length", b"12"),
        (b"content-type", b"application/json"),
        (b"x-ok", b"yes"),
    ]


@pytest.mark.parametrize("name", ["x-accel-redirect", "x-sendfile", "x-reproxy-url", "nel", "report-to"])
def test_an_engine_commands_neither_proxies_nor_browsers(name: str) -> None:
    assert relayed_headers(((name, "/etc/passwd"),), event_stream=False) == []


@pytest.mark.parametrize("status", [204, 304])
@pytest.mark.parametrize("more", [(), EVENTS])
async def test_an_answer_that_can_have_no_body_has_none(status: int, more: Headers) -> None:
    forged = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
    response = FakeResponse(status, (("content-length", str(len(forged))), *more), (forged,))
    answer = await relayed(response)
    assert answer.head is not None
    assert b"content-length" not in answer.head[1]
    assert not answer.head[2]
    assert (answer.writes, answer.ended, response.consumed_bytes) == ([], True, len(forged))


@pytest.mark.parametrize("code", ["a secret", "c" * 65, "", "line\nfeed"])
def test_an_engines_code_is_a_word_or_ours(code: str) -> None:
    assert engine_refusal(500, orjson.dumps({"error": {"code": code}})).code == "engine_refused"


def test_a_stream_of_events_has_no_length_and_no_cache() -> None:
    headers = (*EVENTS, ("content-length", "12"), ("cache-control", "max-age=60"))
    assert relayed_headers(headers, event_stream=True) == [(b"content-type", b"text/event-stream")]


@pytest.mark.parametrize("lengths", [("1", "2"), ("x",), ("-1",), ("",), ("٣",), ("9" * 5000,)])
def test_lengths_that_contradict_are_an_engine_error(lengths: tuple[str, ...]) -> None:
    with pytest.raises(EngineError):
        relayed_headers(tuple(("content-length", length) for length in lengths), event_stream=False)


def test_the_same_length_twice_is_one_length() -> None:
    headers = (("content-length", "5"), ("content-length", "5"))
    assert relayed_headers(headers, event_stream=False) == [(b"content-length", b"5")]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.DRAINING, ShuttingDown),
        (ErrorCode.DEADLINE, DeadlineExceeded),
        (ErrorCode.ENGINE_FAILED, EngineError),
        (ErrorCode.SESSION_LOST, EngineError),
    ],
)
def test_every_break_has_its_error(code: ErrorCode, kind: type[RequestError]) -> None:
    assert type(as_request_error(StreamBroken(code, "why"))) is kind


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error":"model is busy"}', "model is busy"),
        (b'{"detail":"no"}', "no"),
        (b'{"object":"error","message":"bad","type":"BadRequestError","code":400}', "bad"),
        (b"<html>", "The engine refused the request with status 503."),
        (b"[]", "The engine refused the request with status 503."),
    ],
)
def test_an_engines_words_are_found_in_any_shape(body: bytes, message: str) -> None:
    error = engine_refusal(503, body)
    assert (error.status, error.message) == (503, message)


async def test_a_long_piece_is_written_in_steps_each_of_which_is_taken_before_the_next() -> None:
    body = bytes(range(256)) * 1024
    response = FakeResponse(chunks=(body,))
    answer = await relayed(response)
    assert b"".join(data for data, _ in answer.writes) == body
    assert [taken for _, taken in answer.writes] == list(range(0, len(body), WRITE_BYTES))
    assert response.consumed_bytes == len(body)


def test_a_refusal_nested_without_end_is_told_without_its_words() -> None:
    nested = b"[" * 1000 + b"]" * 1000
    error = engine_refusal(400, b'{"error":{"message":%b,"code":"x"}}' % nested)
    assert (error.status, error.code) == (400, "x")
    assert str(engine_refusal(400, b'{"detail":[{"msg":"field required"}]}').message).startswith("[{")
