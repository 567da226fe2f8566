"""Other processes of the gateway are answered, and nobody else."""

from typing import Any

import orjson
import pytest
from starlette.routing import Route, Router

from gateway.api.admin.process_page import ROUTE, ProcessPage
from gateway.api.admin.resources.resource import Json
from gateway.api.exchange.buffers import BufferBudget
from gateway.api.exchange.exchange import HttpSettings
from gateway.api.exchange.middleware import RequestMiddleware
from gateway.cluster.process_tokens import is_signed, make_token
from gateway.runtime.lifecycle import Lifecycle
from tests.gateway.api.calls import Call
from tests.gateway.api.support import MIB

KEY, NOW_S = b"k" * 32, 1_800_000_000.0


async def echo(asked: Json) -> Json:
    return {"asked": asked}


@pytest.fixture
def app() -> RequestMiddleware:
    here = {"b": {"agents": echo}}
    router = Router([Route(ROUTE, endpoint=ProcessPage(KEY, lambda: NOW_S, here.get))])
    return RequestMiddleware(router, HttpSettings(), BufferBudget(MIB), Lifecycle(), lambda *facts: None)


async def ask(app: RequestMiddleware, target: str, token: str, method: str = "GET", **more: Any) -> Call:
    path, _, query = target.partition("?")
    fields = ((b"authorization", f"{more.get('scheme', 'trunkline-process')} {token}".encode()),)
    call = Call(app, method, path, fields, query=query.encode())
    call.body(b"")
    await call.done()
    return call


async def test_a_process_that_knows_the_key_is_answered_and_the_answer_vouched_for(
    app: RequestMiddleware,
) -> None:
    target = "/cluster/b/agents?agent=gpu+1"
    token = make_token(KEY, "b", target, NOW_S)
    call = await ask(app, target, token)
    assert (call.status, orjson.loads(call.content)) == (200, {"asked": {"agent": "gpu 1"}})
    assert is_signed(KEY, token, call.content, call.headers["x-trunkline-signature"])


TARGET = "/cluster/b/agents"


@pytest.mark.parametrize(
    "token",
    [
        "",
        make_token(b"o" * 32, "b", TARGET, NOW_S),
        make_token(KEY, "b", TARGET, NOW_S - 60),
        make_token(KEY, "b", TARGET, NOW_S + 60),
        make_token(KEY, "c", TARGET, NOW_S),
        make_token(KEY, "b", TARGET + "?agent=x", NOW_S),
        "1~2~3",
    ],
)
async def test_a_forged_or_expired_token_is_refused(app: RequestMiddleware, token: str) -> None:
    call = await ask(app, TARGET, token)
    assert (call.status, orjson.loads(call.content)["error"]["code"]) == (401, "not_a_process")


async def test_a_key_of_a_client_counts_for_nothing(app: RequestMiddleware) -> None:
    assert (await ask(app, TARGET, make_token(KEY, "b", TARGET, NOW_S), scheme="Bearer")).status == 401


@pytest.mark.parametrize(
    ("target", "process", "method", "status"),
    [
        ("/cluster/c/agents", "c", "GET", 421),
        ("/cluster/b/hold", "b", "GET", 404),
        ("/cluster/b/agents", "b", "POST", 405),
        ("/cluster/b/agents?a=1&b=1&c=1&d=1&e=1", "b", "GET", 400),
        ("/cluster/b/agents?a=%ff", "b", "GET", 400),
    ],
)
async def test_what_cannot_be_answered_is_refused(
    app: RequestMiddleware, target: str, process: str, method: str, status: int
) -> None:
    assert (await ask(app, target, make_token(KEY, process, target, NOW_S), method)).status == status
