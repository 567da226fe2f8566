"""The pages below ``/admin/``: what a role allows to see of a running gateway, and to change.

JSON only. A request carries its key or token in a header, as everywhere: there are no cookies and no basic
authentication, so no page in a browser can make one on somebody's behalf (no CSRF).
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

import orjson
import structlog
from pydantic import BaseModel, ValidationError

from gateway.api.admin.resources.resource import Json
from gateway.api.exchange.exchange import HttpExchange, exchange_of
from gateway.api.exchange.inbound import Receive
from gateway.api.exchange.reply import Send
from gateway.api.openai.handlers import JSON
from gateway.domain.errors import (
    BadRequest,
    BodyTooLarge,
    Forbidden,
    MethodNotAllowed,
    NameInUse,
    RecordInWrongState,
    RecordNotFound,
    RequestError,
    StateUnavailable,
    UnsupportedEncoding,
)
from gateway.domain.request import Principal
from gateway.domain.scopes import AdminRole
from gateway.pipeline.pipeline import KeyAuthenticator
from gateway.storage.acts import acting_as
from gateway.storage.errors import AmbiguousId, BadValue, NameTaken, RecordError, StateError, UnknownRecord

BODY_BYTES = 64 * 1024
"""Longest body of a request."""

QUERY_FIELDS = 16
"""Most fields of a query."""

_WORDS_CHARS = 300
"""How much of the beginning, and of the end, of a long refusal is sent."""

_NO_STORE = [(b"cache-control", b"no-store")]

_log = structlog.get_logger("gateway.api.admin.resources")


async def _always() -> bool:
    return True


class AdminCall(NamedTuple):
    """One request to this API, whose role was found to be enough."""

    exchange: HttpExchange
    principal: Principal
    names: Mapping[str, str]
    """From the path."""
    still_allowed: Callable[[], Awaitable[bool]] = _always
    """Whether the key that was shown would be let in now, with its role."""


AdminAction = Callable[[AdminCall], Awaitable[Json | None]]
"""Runs one method of a page and returns the answer; None: it has answered itself. Raises RequestError and the
store's errors."""


class AdminMethod(NamedTuple):
    """What one method of a page does."""

    method: str
    path: str
    """In Starlette's form."""
    role: AdminRole
    """It takes this role, or one that covers it."""
    action: AdminAction
    query: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
    """The schemas of what its query may hold, where it reads that itself."""
    body: type[BaseModel] | None = None
    """What it takes, where that is no operation on the store."""

    @property
    def name(self) -> str:
        """``create_key``: also that of the operation on the store, where there is one."""
        return self.action.__name__

    @property
    def summary(self) -> str:
        """What it does and the role that it takes, for ``/openapi.json``."""
        words = self.name.replace("_", " ").capitalize()
        return f"{words}; takes the role {self.role.value}"


@dataclass(frozen=True)
class AdminPage:
    """One path, and what its methods do."""

    keys: KeyAuthenticator
    methods: dict[str, AdminMethod] = field(default_factory=dict)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        exchange = exchange_of(scope)
        exchange.route = "admin"
        principal = await exchange.identify(self.keys)
        if exchange.method not in self.methods:
            allowed = tuple(self.methods)
            raise MethodNotAllowed(f"Here are: {', '.join(allowed)}.", allowed)
        method = self.methods[exchange.method]
        check_role(principal, method.role)
        still_allowed = partial(self._allows, exchange, method.role)
        call = AdminCall(exchange, principal, scope["path_params"], still_allowed)
        with acting_as(f"key:{principal.key_id}"):
            found = await _run_action(method.action, call)
        if exchange.method != "GET":
            what = {"act": method.name, "of": next(iter(call.names.values()), None)}
            _log.info("admin_act", id=exchange.id, key=principal.key_name, **what)
        if found is not None:
            await exchange.reply.whole(200, JSON, orjson.dumps(found), _NO_STORE)

    async def _allows(self, exchange: HttpExchange, role: AdminRole) -> bool:
        """While the store cannot be asked, nobody is."""
        try:
            check_role(await self.keys.identify(exchange.credential()), role)
        except (RequestError, StateError):
            return False
        return True


async def while_allowed(call: AdminCall, pieces: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """``pieces`` of a stream that has no end of its own, for as long as the key may have them: one that is
    revoked, that ends or that loses its role gets no further one."""
    async with aclosing(pieces):
        async for piece in pieces:
            if not await call.still_allowed():
                return
            yield piece


def admin_pages(keys: KeyAuthenticator, methods: Iterable[AdminMethod]) -> dict[str, AdminPage]:
    """The pages by path, for who presents one of ``keys``; a path that ends with a name that may hold slashes
    comes after all others, which a router then tries first."""
    pages: dict[str, AdminPage] = {}
    for each in methods:
        pages.setdefault(each.path, AdminPage(keys)).methods[each.method] = each
    return {path: pages[path] for path in sorted(pages, key=lambda path: path.endswith(":path}"))}


def check_role(principal: Principal, wanted: AdminRole) -> None:
    """Raises Forbidden unless ``principal`` may do what ``wanted`` may."""
    if principal.role is None or not principal.role.covers(wanted):
        has = "has none" if principal.role is None else f"has the role {principal.role.value!r}"
        raise Forbidden(
            f"This takes the role {wanted.value!r}, and this key {has} "
            "(trunkline key create --role, or the roles in a token).",
            code="role_required",
        )


async def read_body(exchange: HttpExchange) -> Json:
    """The JSON object sent; empty when nothing was. Raises RequestError."""
    fields, inbound = exchange.fields, exchange.inbound

    def enough(chunk: bytes) -> bool:
        if inbound.received_bytes > BODY_BYTES:
            raise BodyTooLarge(f"The body may be {BODY_BYTES} bytes long here at most.")
        return False

    if fields.get(b"content-encoding", b"identity").strip().lower() not in (b"identity", b""):
        raise UnsupportedEncoding("Compressed bodies are not accepted here.", param="content-encoding")
    raw = await inbound.read(enough)
    if not raw:
        return {}
    if b"json" not in fields.get(b"content-type", b"").lower():
        raise BadRequest("Send JSON, with content-type application/json.", param="content-type")
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise BadRequest("The request body must be a JSON object.", code="invalid_json")
    return value


def read_query(exchange: HttpExchange) -> dict[str, str]:
    """What the query says, by name. Raises BadRequest."""
    try:
        text = exchange.query.decode("ascii")
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=QUERY_FIELDS)
    except ValueError:
        raise BadRequest("The query cannot be read.", code="invalid_value") from None
    found = dict(pairs)
    if len(found) != len(pairs):
        raise BadRequest("The query names something twice.", code="invalid_value")
    return found


def validated(kind: type[BaseModel], members: Json) -> Json:
    """The members that were given, each of its type. Raises BadRequest, which names the first that is wrong
    and tells nothing of its value."""
    try:
        return kind.model_validate(members).model_dump(exclude_unset=True)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False, include_context=False)[0]
        path = ".".join(str(each) or '""' for each in problem["loc"])  # a member may have no name
        raise BadRequest(
            f"{path[:100]}: {problem['msg'].removeprefix('Input ')}.", param=path[:100], code="invalid_value"
        ) from None


def client_message(words: object) -> str:
    """``words`` as a sentence for the client. Of a long one, which quotes a name as long as a body, only the
    beginning and the end."""
    text = f"{words}."
    return text if len(text) <= 2 * _WORDS_CHARS else f"{text[:_WORDS_CHARS]} … {text[-_WORDS_CHARS:]}"


async def _run_action(action: AdminAction, call: AdminCall) -> Json | None:
    """Run an action, with the store's errors as clients see them. Whoever may use this API is told what is
    wrong with the state, too, because it is theirs to mend."""
    try:
        return await action(call)
    except (BadValue, AmbiguousId) as error:
        raise BadRequest(client_message(error), code="invalid_value") from None
    except NameTaken as error:
        raise NameInUse(client_message(error)) from None
    except UnknownRecord as error:
        raise RecordNotFound(client_message(error)) from None
    except RecordError as error:
        raise RecordInWrongState(client_message(error)) from None
    except StateError as error:
        _log.error("state_failed", id=call.exchange.id, error=str(error))
        raise StateUnavailable(f"The gateway's state cannot be used just now: {error}.") from None
