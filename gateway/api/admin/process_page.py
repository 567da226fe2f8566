"""``/cluster/{process}/{question}``: what this process, or another one of its host, tells the other processes
of the gateway. It answers of itself only, whoever asks; what it tells operators may see as well.

A request shows a token that only processes with the cluster key can make
(:mod:`gateway.cluster.process_tokens`); API keys count for nothing here.
"""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

import orjson

from gateway.api.admin.resources.resource import Json
from gateway.api.exchange.exchange import exchange_of
from gateway.api.exchange.inbound import Receive
from gateway.api.exchange.reply import Send
from gateway.api.openai.handlers import JSON
from gateway.cluster.process_reads import PATH, SCHEME, SIGNATURE
from gateway.cluster.process_tokens import BadProcessToken, check_token, sign_answer
from gateway.domain.errors import (
    BadRequest,
    MethodNotAllowed,
    Misdirected,
    RouteNotFound,
    Unauthenticated,
)

ROUTE = PATH + "{process}/{question}"

MOST_FACTS = 4

Answerer = Callable[[Json], Awaitable[Json]]


@dataclass(frozen=True)
class ProcessPage:
    """Answers questions of other processes."""

    key: bytes
    """The members' own."""
    store_s: Callable[[], float]
    """Gives seconds of the store's clock."""
    answerers: Callable[[str], Mapping[str, Answerer] | None]
    """Those of a process on this host, by question; None: there is no such process here."""

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        exchange = exchange_of(scope)
        exchange.route = "admin"
        if exchange.method != "GET":
            raise MethodNotAllowed("Here is: GET.", ("GET",))
        names, query = scope["path_params"], exchange.query
        process, question = names["process"], names["question"]
        target = f"{PATH}{process}/{question}" + (f"?{query.decode('latin-1')}" if query else "")
        token = self._token(exchange.fields.get(b"authorization", b""), process, target)
        answerers = self.answerers(process)
        if answerers is None:
            raise Misdirected("Another process of the gateway is meant.")
        answerer = answerers.get(question)
        if answerer is None:
            raise RouteNotFound("This process does not know the question.")
        body = orjson.dumps(await answerer(_facts(query)))
        signature = sign_answer(self.key, token, body).encode("ascii")
        await exchange.reply.whole(200, JSON, body, [(SIGNATURE.encode("ascii"), signature)])

    def _token(self, field: bytes, process: str, target: str) -> str:
        """The token that was sent, which is good for this. Raises Unauthenticated."""
        scheme, _, token = field.decode("latin-1").partition(" ")
        try:
            if scheme.lower() != SCHEME:
                raise BadProcessToken("this is for other processes of the gateway")
            check_token(self.key, token, process, target, self.store_s())
        except BadProcessToken as error:
            raise Unauthenticated(f"Not a process of this gateway: {error}.", code="not_a_process") from None
        return token


def _facts(query: bytes) -> Json:
    """What came along. Raises BadRequest."""
    try:
        text = query.decode("ascii")
        return dict(parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=MOST_FACTS))
    except ValueError:
        raise BadRequest("The query cannot be read.", code="invalid_value") from None
