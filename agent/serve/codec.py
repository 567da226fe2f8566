"""A model's process for the CPU: carries out ``decode`` and ``encode``, one after the other."""

import logging
import re
from collections.abc import Callable
from typing import Any

import orjson

from agent.engines.torch.errors import is_out_of_memory
from agent.serve.messages import DecodeOrder, EncodeOrder, JobResult, ModelFault
from agent.serve.model import Model, ModelRequest, ModelResponse
from agent.serve.parcels import ParcelWriter
from shared.process.request_errors import RequestError
from shared.protocol.header_fields import HOP_BY_HOP

_log = logging.getLogger("model")

_JSON = "application/json"
_HEADER_CHARS = 8192
_OF_THE_SERVER = HOP_BY_HOP | {"content-length"}
"""Fields that belong to the server's connection, which writes them itself."""
_LINE_END = re.compile(r"\r\n|\n|\r")
"""Of a server-sent event: no other character ends its lines."""


class Codec:
    """The two hooks of ``model``, with what goes in and out of them in parcels."""

    def __init__(self, model: Model, writer: ParcelWriter) -> None:
        self._model = model
        self._writer = writer

    def run(self, order: DecodeOrder | EncodeOrder) -> JobResult:
        """Never raises an Exception: one in a hook is in the result."""
        decodes = isinstance(order, DecodeOrder)
        try:
            return self._decode(order) if isinstance(order, DecodeOrder) else self._encode(order)
        except Exception as error:
            return JobResult(order.job, fault_of(error, "decode" if decodes else "encode"))

    def _decode(self, order: DecodeOrder) -> JobResult:
        (body,) = order.body.parts()
        request = ModelRequest(
            path=order.path,
            body=bytes(body),
            headers=order.headers,
            model=order.model,
            query=order.query,
            method=order.method,
        )
        item = self._model.decode(request)
        length = self._model.length(item)
        return JobResult(order.job, self._writer.pack(item), None if length is None else float(length))

    def _encode(self, order: EncodeOrder) -> JobResult:
        said = self._model.encode(order.output.unpack())
        if order.streamed:
            return JobResult(order.job, self._writer.of_parts([event(said)]))
        answer = said if isinstance(said, ModelResponse) else ModelResponse(said)
        body, content_type = response_body(answer.body)
        given = ((name.lower(), value) for name, value in answer.headers.items())
        headers = {name: value for name, value in given if name not in _OF_THE_SERVER}
        headers.setdefault("content-type", answer.content_type or content_type)
        return JobResult(
            order.job,
            self._writer.of_parts([body]),
            status=checked_status(answer.status),
            headers=checked_headers(headers),
        )


def fault_of(error: BaseException, hook: str) -> ModelFault:
    """What is told of an error in a hook; its traceback is in the log, unless the model refused the
    request."""
    if isinstance(error, RequestError):
        return ModelFault("refused", error.message, error.status, error.type, error.code, error.param)
    kind = type(error).__name__
    if is_out_of_memory(error):
        _log.error("%s ran out of memory: %s", hook, error)
        return ModelFault("memory", f"{hook} raised {kind}")
    _log.error("%s raised %s: %s", hook, kind, error, exc_info=error)
    return ModelFault("raised", f"{hook} raised {kind}")


def response_body(value: Any) -> tuple[bytes, str]:
    """The bytes and their type. Raises TypeError for what cannot be written as JSON."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value), "application/octet-stream"
    if isinstance(value, str):
        return value.encode(), "text/plain; charset=utf-8"
    return to_json(value), _JSON


def to_json(value: Any) -> bytes:
    return orjson.dumps(value, _plain, orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)


def event(value: Any) -> bytes:
    """One event of a stream: bytes as they are, anything else as a server-sent event. A reader joins an
    event's lines with LF, so text is what it was but for the line ends CR and CRLF (WHATWG HTML §9.2.6)."""
    if isinstance(value, ModelResponse):
        value = value.body
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    lines = _LINE_END.split(value) if isinstance(value, str) else [to_json(value).decode()]
    return "".join(f"data: {line}\n" for line in lines).encode() + b"\n"


def checked_status(status: int) -> int:
    """Raises ValueError for what is no status of a response."""
    if not isinstance(status, int) or not 200 <= status <= 599:
        raise ValueError(f"encode returned the status {status!r}")
    return status


def checked_headers(headers: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """Raises ValueError for what HTTP cannot carry."""
    for name, value in headers.items():
        if not name.isascii() or not name.replace("-", "a").replace("_", "a").isalnum():
            raise ValueError(f"encode returned a header with the name {name!r}")
        if not isinstance(value, str) or not value.isprintable() or len(value) > _HEADER_CHARS:
            raise ValueError(f"encode returned a header {name} whose value is not one line of text")
    return tuple(headers.items())


def _plain(value: Any) -> Any:
    """Arrays and tensors that orjson does not write by itself."""
    to_list: Callable[[], Any] | None = getattr(value, "tolist", None)
    if to_list is None:
        raise TypeError(f"encode returned {type(value).__name__}, which cannot be written as JSON")
    return to_list()
