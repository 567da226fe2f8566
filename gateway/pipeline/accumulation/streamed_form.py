"""Which requests for an answer in one piece can be asked as streams, and what is asked then. Pure.

A request is left as it is where no engine could go on with its answer (several choices, logprobs, a grammar,
reasoning with a budget, stored responses: :mod:`gateway.dispatch.recovery.original_request`), and where what
an engine streams may differ from what it says in one piece: tools, whose calls engines read from a text in
two ways, and members that have an effect on the last part of an answer only.
"""

from collections.abc import Mapping
from typing import Any

import orjson

from gateway.dispatch.recovery import NotContinuable
from gateway.dispatch.recovery.original_request import OriginalRequest
from gateway.dispatch.stream_recovery import REQUEST_BYTES
from gateway.domain.errors import BadRequest
from gateway.domain.json_members import OPTIONS, with_members
from gateway.domain.request import Request
from shared.protocol.messages import UsageMode
from shared.protocol.routes import CONTINUED_ROUTES

_TELLS_USAGE_WHEN_ASKED = frozenset(("chat", "completions"))
_STREAM: Mapping[str, bytes] = {"stream": b"true"}
_WITH_USAGE: Mapping[str, bytes] = {**_STREAM, OPTIONS: b'{"include_usage":true}'}
_IN_ONE_PIECE = (
    "tools",
    "functions",
    OPTIONS,  # engines refuse it without a stream
    "kv_transfer_params",
    "return_hidden_states",
    "return_routed_experts",
    "return_completion_tokens_ids",
    "return_meta_info",
    "return_progress",
    "timings_per_token",
    "plugins",
)
"""Members with which an answer in one piece has, or may have, what no stream tells in the same way."""


def may_be_streamed(request: Request) -> bool:
    """Whether :func:`streamed_body` is worth a look."""
    body = request.body
    return (
        not request.streaming
        and not request.shadow
        and request.route in CONTINUED_ROUTES
        and request.need == request.route
        and body.rest is None
        and 0 < body.held_bytes <= REQUEST_BYTES
    )


def usage_mode(request: Request) -> UsageMode:
    """What an agent does with the usage of the streamed answer: all of it is wanted."""
    return UsageMode.KEEP if request.route in _TELLS_USAGE_WHEN_ASKED else UsageMode.NONE


def streamed_body(route: str, body: bytes) -> bytes | None:
    """The body that asks for the same answer as a stream; None: the answer is to be asked for in one
    piece."""
    original = OriginalRequest(body)
    try:
        for _ in original.read():
            pass
        original.check(begun=True)
    except NotContinuable:
        return None
    members = orjson.loads(body)
    if not members or any(_says(members.get(name)) for name in _IN_ONE_PIECE):
        return None
    try:
        return with_members(body, _WITH_USAGE if route in _TELLS_USAGE_WHEN_ASKED else _STREAM)
    except BadRequest:
        return None


def _says(value: Any) -> bool:
    """Whether a member asks for anything."""
    return value is not None and value is not False and value != []
