"""The engine process's HTTP surface: OpenAI's routes, and what an agent asks of any engine.

The slot of a request whose client disconnects is freed at once.
"""

import hmac
import itertools
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, TypeVar

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from agent.engines.process import first_of
from agent.engines.torch import shapes
from agent.engines.torch.answers import TextAnswer
from agent.engines.torch.chat_requests import ChatRequest
from agent.engines.torch.engine import TorchEngine
from agent.engines.torch.errors import InvalidRequest, request_error, retry_headers
from agent.engines.torch.metrics import CONTENT_TYPE, TorchMetrics
from agent.engines.torch.parsing import (
    CompletionRequest,
    EngineRequest,
    TextRequest,
    read_object,
)
from agent.engines.torch.speech_requests import read_form
from agent.engines.torch.text_reading import Reading, Scores
from agent.engines.torch.vector_requests import (
    ClassifyRequest,
    EmbeddingRequest,
    RerankRequest,
    ScoreRequest,
)
from shared.process.request_errors import (
    BodyTooLarge,
    MethodNotAllowed,
    ModelNotFound,
    RequestError,
    RouteNotFound,
    Unauthenticated,
)

_log = logging.getLogger(__name__)

_BODY_BYTES = 16 * 1024 * 1024
"""A prompt of a million tokens is some 4 MB of text, and more when JSON escapes it; images are not read
here."""

_RECORDING_BYTES = 64 * 1024 * 1024
"""OpenAI takes recordings of 25 MB."""

T = TypeVar("T")
R = TypeVar("R", bound=EngineRequest)
X = TypeVar("X", bound=TextRequest)
V = TypeVar("V", Reading, Scores)

_STREAM_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


class EngineHTTP:
    """The routes over one :class:`TorchEngine`."""

    def __init__(self, engine: TorchEngine, key: str | None) -> None:
        self._engine = engine
        self._key = key
        self._ids = itertools.count(1)
        self.metrics = TorchMetrics(engine)

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/models", self._models),
                Route("/v1/models/{model:path}", self._models),
                Route(
                    "/v1/chat/completions",
                    partial(self._text, ChatRequest, self._engine.chat),
                    methods=["POST"],
                ),
                Route(
                    "/v1/completions",
                    partial(self._text, CompletionRequest, self._engine.complete),
                    methods=["POST"],
                ),
                *self._reading_routes(),
                Route("/v1/audio/transcriptions", self._transcribe, methods=["POST"]),
                Route("/health", self._health),
                Route("/metrics", self._metrics),
            ],
            exception_handlers=dict.fromkeys(
                (RequestError, HTTPException, StreamAbandoned, Exception), self._on_error
            ),
        )

    def _reading_routes(self) -> list[Route]:
        reader = self._engine.reader
        kinds: dict[tuple[str, ...], Any] = {
            ("/v1/embeddings",): partial(self._read, EmbeddingRequest, reader.embed, self._embeddings),
            ("/v1/rerank", "/rerank", "/v2/rerank"): partial(
                self._read, RerankRequest, reader.rerank, self._rerank
            ),
            ("/v1/score", "/score"): partial(self._read, ScoreRequest, reader.score, self._score),
            ("/v1/classify", "/classify"): partial(
                self._read, ClassifyRequest, reader.classify, self._classify
            ),
        }
        return [Route(path, answer, methods=["POST"]) for paths, answer in kinds.items() for path in paths]

    # --- Questions about the engine

    async def _models(self, request: Request) -> Response:
        self._authenticate(request)
        facts = self._engine.facts
        wanted = request.path_params.get("model")
        if wanted not in (None, facts.model):
            raise _no_such_model(wanted, facts.model)
        listed = shapes.model_list(facts)
        return _json(listed if wanted is None else listed["data"][0])

    async def _health(self, request: Request) -> Response:
        """READY, BUSY (every slot computes) or FAILED; 503 only for the last."""
        engine = self._engine
        if engine.failure is not None:
            return _json({"status": "FAILED", "reason": engine.failure}, status=503)
        status = "BUSY" if engine.running >= engine.facts.slots else "READY"
        return _json({"status": status, "running": engine.running, "waiting": engine.waiting})

    async def _metrics(self, request: Request) -> Response:
        self._authenticate(request)
        return Response(self.metrics.text(), media_type=CONTENT_TYPE)

    # --- Requests to the model

    async def _text(
        self,
        kind: type[X],
        begin: Callable[[X], Coroutine[Any, Any, TextAnswer]],
        request: Request,
    ) -> "Response | TextStream":
        """The answer's response once there is something to say, streamed or whole."""
        with ExitStack() as holding:
            wanted = await self._enter(kind, request, holding)
            answer = await unless_disconnected(request.receive, begin(wanted))
            holding.callback(answer.close)
            began = time.monotonic()
            chat = kind is ChatRequest
            shape = shapes.TextShape(
                chat=chat,
                id=self._id("chatcmpl" if chat else "cmpl"),
                model=self._engine.facts.model,
                created=int(time.time()),
                include_usage=wanted.include_usage,
                tokens=None if wanted.wanted_logprobs is None else self._engine.token_texts,
            )
            chunks = await unless_disconnected(request.receive, answer.next())
            self.metrics.first_token_s.observe(time.monotonic() - began)

            def ended() -> None:
                reason = answer.generations[0].finish_reason or "stop"
                self.metrics.finished(reason, answer.usage, time.monotonic() - began)

            if wanted.stream:
                return TextStream(answer, chunks, shape, holding.pop_all(), ended)
            chunks += await unless_disconnected(request.receive, _rest(answer))
            ended()
            return _json(shape.whole(chunks, answer.usage))

    async def _read(
        self,
        kind: type[R],
        read: Callable[[R], Coroutine[Any, Any, V]],
        answer: Callable[[R, V], Any],
        request: Request,
    ) -> Response:
        """The answer to a request that has texts read and none written."""
        with ExitStack() as holding:
            began = time.monotonic()
            wanted = await self._enter(kind, request, holding)
            found = await unless_disconnected(request.receive, read(wanted))
            self.metrics.finished("stop", shapes.TokenUsage(found.tokens, 0), time.monotonic() - began)
            return _json(answer(wanted, found))

    async def _transcribe(self, request: Request) -> Response:
        with ExitStack() as holding:
            began = time.monotonic()
            self._authenticate(request)
            holding.enter_context(self._engine.admission.enter())
            wanted, recording = await read_form(request.headers, await _body(request, _RECORDING_BYTES))
            self._check_model(wanted)
            work = self._engine.transcribe(wanted, recording)
            found = await unless_disconnected(request.receive, work)
            self.metrics.finished("stop", shapes.TokenUsage(0, found.tokens), time.monotonic() - began)
            if wanted.response_format == "text":
                return Response(found.text + "\n", media_type="text/plain")
            return _json(shapes.transcript(found.text, found.duration_s))

    def _embeddings(self, wanted: EmbeddingRequest, found: Reading) -> Any:
        as_base64 = wanted.encoding_format == "base64"
        model = self._engine.facts.model
        return shapes.embeddings(found.vectors, model=model, prompt_tokens=found.tokens, as_base64=as_base64)

    def _rerank(self, wanted: RerankRequest, found: Scores) -> Any:
        facts = self._engine.facts
        return shapes.rerank(
            wanted, found.scores, answer_id=self._id("rerank"), model=facts.model, tokens=found.tokens
        )

    def _score(self, wanted: ScoreRequest, found: Scores) -> Any:
        return shapes.score(found.scores, **self._listing("score", found.tokens))

    def _classify(self, wanted: ClassifyRequest, found: Reading) -> Any:
        labels = self._engine.model.labels
        return shapes.classify(found.vectors, labels, **self._listing("classify", found.tokens))

    def _listing(self, kind: str, tokens: int) -> dict[str, Any]:
        listing: dict[str, Any] = {"answer_id": self._id(kind), "tokens": tokens}
        listing.update(
            created=int(time.time()),
            model=self._engine.facts.model,
        )
        return listing

    def _id(self, kind: str) -> str:
        return f"{kind}-{self._engine.facts.created:x}{next(self._ids):08x}"

    async def _enter(self, kind: type[R], request: Request, holding: ExitStack) -> R:
        """Let a request in: its key, a place for it, its body, its model."""
        self._authenticate(request)
        holding.enter_context(self._engine.admission.enter())
        wanted = kind.read(read_object(await _body(request)))
        self._check_model(wanted)
        return wanted

    def _check_model(self, wanted: EngineRequest) -> None:
        if wanted.model not in (None, self._engine.facts.model):
            raise _no_such_model(wanted.model, self._engine.facts.model)

    def _authenticate(self, request: Request) -> None:
        if self._key is None:
            return
        presented = request.headers.get("authorization", "")
        if not hmac.compare_digest(presented.encode(), f"Bearer {self._key}".encode()):
            raise Unauthenticated("This engine wants its key as a bearer token.")

    # --- Errors

    async def _on_error(self, request: Request, error: Exception) -> Response:
        """The answer to a request that failed. Starlette raises an unexpected error again after this, and so
        it is logged."""
        if isinstance(error, StreamAbandoned):
            return Response(status_code=499)  # sent to nobody
        if isinstance(error, HTTPException):
            not_found = RouteNotFound("This engine has no such path.")
            not_allowed = MethodNotAllowed(f"{request.method} is not for this path.")
            error = not_allowed if error.status_code == 405 else not_found
        refusal = request_error(error)
        self.metrics.failed(refusal.code)
        return _json(refusal.openai_body(), status=refusal.status, headers=retry_headers(refusal))


async def _rest(answer: TextAnswer) -> list[shapes.ChoiceChunk]:
    found = []
    while chunks := await answer.next():
        found += chunks
    return found


async def _body(request: Request, most_bytes: int = _BODY_BYTES) -> bytes:
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > most_bytes:
            raise BodyTooLarge(f"The body has more than {most_bytes} bytes.")
    if not data:
        raise InvalidRequest("The body is empty.", code="invalid_json")
    return bytes(data)


def _no_such_model(name: Any, ours: str) -> ModelNotFound:
    return ModelNotFound(f"The model {str(name)[:256]!r} does not exist here; this engine serves {ours!r}.")


def _json(value: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(orjson.dumps(value), status, headers, "application/json")


class StreamAbandoned(Exception):
    """The client closed its connection; there is nobody to answer."""


async def unless_disconnected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``. Raises :class:`StreamAbandoned`, and cancels it, when the client disconnects.

    To be used once the request's body was read: from then on there is nothing to receive but the disconnect.
    """
    return await first_of(work, _disconnected(receive))


async def _disconnected(receive: Receive) -> NoReturn:
    while (await receive())["type"] != "http.disconnect":
        pass
    raise StreamAbandoned


@dataclass
class TextStream:
    """The server-sent events of an answer. ``holding`` is closed when the stream ends, however it ends.

    The head is sent with the first text, so that an error before it still gets its own status. A later error
    closes the connection: an error written into the stream would look like the end of the answer, while an
    answer that is visibly cut off can be continued by another engine.
    """

    answer: TextAnswer
    first: list[shapes.ChoiceChunk]
    """The chunks that came first."""
    shape: shapes.TextShape
    holding: ExitStack
    on_end: Callable[[], None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self.holding, suppress(StreamAbandoned):
            await unless_disconnected(receive, self._send(send))

    async def _send(self, send: Send) -> None:
        async def write(data: bytes, *, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": more})

        await send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
        answer, shape = self.answer, self.shape
        chunks, data = self.first, shape.first(self.answer.choices)
        try:
            while chunks:
                data += b"".join(shape.chunk(chunk) for chunk in chunks)
                if answer.ended:
                    break
                await write(data)
                data = b""
                chunks = await answer.next()
        except RequestError as error:
            _log.warning("an answer was broken off (%s): %s", error.code, error.message)
            return
        self.on_end()
        await write(data + shape.end(answer.usage), more=False)
