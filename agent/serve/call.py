"""The answer to one request to a model: decoded, computed and encoded."""

from collections.abc import Mapping
from dataclasses import dataclass

from agent.serve.codec_pool import CodecPool
from agent.serve.computation import Computation
from agent.serve.errors import request_error_of
from agent.serve.messages import DecodeOrder, EncodeOrder, JobResult, ModelFault
from agent.serve.parcels import Parcel
from agent.serve.server import ModelServer


@dataclass(frozen=True, slots=True)
class EncodedAnswer:
    """How a response begins; the rest of a stream comes from :meth:`ModelCall.next_piece`."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    streamed: bool


class ModelCall:
    """Answers one request. :meth:`close` whatever happens."""

    def __init__(self, server: ModelServer, tag: str) -> None:
        self._server = server
        self._tag = tag
        self._computation: Computation | None = None

    async def begin(
        self, path: str, query: str, method: str, headers: Mapping[str, str], model: str, body: Parcel
    ) -> EncodedAnswer:
        """The answer, or how a streamed one begins. Raises RequestError."""
        codecs = self._codecs()
        order = DecodeOrder(codecs.number(), path, query, method, dict(headers), model, body)
        with self._server.item_to_come():
            decoded = await codecs.run(order)
            if isinstance(decoded.result, ModelFault):
                raise request_error_of(decoded.result)
            self._computation = self._server.compute(decoded.result, decoded.length, self._tag)
        output = await self._computation.next()
        if isinstance(output, ModelFault):
            raise request_error_of(output)
        streamed = self._computation.streamed
        if output is None:
            return EncodedAnswer(200, (), b"", True)
        encoded = await self._encode(output, streamed)
        return EncodedAnswer(encoded.status, encoded.headers, self._taken(encoded), streamed)

    async def next_piece(self) -> bytes | None:
        """The next of a stream; None at its end. Raises RequestError when it is broken off."""
        assert self._computation is not None
        output = await self._computation.next()
        if output is None:
            return None
        if isinstance(output, ModelFault):
            raise request_error_of(output)
        return self._taken(await self._encode(output, True))

    def close(self) -> None:
        """Harmless when it is closed."""
        computation, self._computation = self._computation, None
        if computation is not None:
            self._server.release(computation)

    async def _encode(self, output: Parcel, streamed: bool) -> JobResult:
        codecs = self._codecs()
        try:
            encoded = await codecs.run(EncodeOrder(codecs.number(), output, streamed))
        finally:
            self._server.scratch.remove(output)
        if isinstance(encoded.result, ModelFault):
            raise request_error_of(encoded.result)
        return encoded

    def _taken(self, encoded: JobResult) -> bytes:
        assert isinstance(encoded.result, Parcel)
        try:
            return bytes(encoded.result.parts()[0])
        finally:
            self._server.scratch.remove(encoded.result)

    def _codecs(self) -> CodecPool:
        assert self._server.codecs is not None, "used before it was started"
        return self._server.codecs
