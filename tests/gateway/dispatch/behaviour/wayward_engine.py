"""An engine that answers, fails and falls silent when it is told to, and what it answers."""

import orjson

from shared.protocol.errors import ErrorCode
from shared.protocol.messages import ResponseHead, Trailers
from tests.gateway.dispatch.recovery import engines
from tests.gateway.dispatch.recovery.engines import Model, Style
from tests.gateway.dispatch.recovery.going_on import seen_in_chat
from tests.gateway.fleet.fleet import EngineStream, FakeAgent

MODEL = Model(("Once", " upon", "\n", ' a "time"', " é", "\\n", " there", " was", " an", " end"))
EVENTS = ResponseHead(200, (("content-type", "text/event-stream"),))
JSON = ResponseHead(200, (("content-type", "application/json"),))
BUSY = ResponseHead(503, (("content-type", "application/json"),))
BUSY_BODY = b'{"error":{"message":"busy"}}'
WHOLE = orjson.dumps({"text": "x" * 20_000})
"""What engines answer in one piece."""
CHAT = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
CHAT_BODY = orjson.dumps(CHAT | {"stream_options": {"include_usage": True}})
UNDISTURBED = seen_in_chat(engines.chat(MODEL, orjson.loads(CHAT_BODY), Style()))


class Engine:
    """What answers one stream, step by step."""

    def __init__(self, stream: EngineStream, agent: FakeAgent) -> None:
        self.stream = stream
        self.agent = agent
        self.sent = 0
        self.over = False
        self._answer: bytes | None = None
        self._status: int | None = None

    def head(self, busy: bool = False) -> None:
        if self._answer is not None or self.over:
            return
        if not self.stream.body_ended:
            return
        asked = orjson.loads(self.stream.body)
        if busy:
            self._answer = BUSY_BODY
        elif self.stream.head.streaming:
            style = Style(id=f"{self.agent.name}{self.stream.stream.id}", crlf=self.agent.name == "b")
            self._answer = engines.chat(MODEL, asked, style)
        else:
            self._answer = WHOLE
        head = BUSY if busy else EVENTS if self.stream.head.streaming else JSON
        self.stream.stream.send_head(head)

    def send(self, size_bytes: int) -> None:
        """The next bytes; waits, as engines do, while the tunnel takes no more."""
        self.head()
        if self._answer is None or self.over or not self.stream.ready:
            return
        piece = self._answer[self.sent : self.sent + size_bytes]
        if piece:
            self.sent += len(piece)
            self.stream.ready = self.stream.stream.send_data(piece)

    def finish(self) -> None:
        """All that is left, and the end."""
        self.send(10**6)
        if self._answer is not None and not self.over:
            self.end()

    def end(self) -> None:
        """In order as far as HTTP goes; a stream of events wherever it is."""
        whole = self._answer is not None and self.sent == len(self._answer)
        if self._answer is not None and not self.over and (whole or self.stream.head.streaming):
            self.over = True
            self.stream.stream.end(Trailers())

    def fail(self, code: ErrorCode) -> None:
        if not self.over:
            self.over = True
            self.stream.stream.reset(code, "because")
