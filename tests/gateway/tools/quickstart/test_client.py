"""The quickstart's own client, against an engine that misbehaves on request."""

import asyncio
from typing import Any

import pytest

from gateway.tools.quickstart.client import Client, Streamed
from gateway.tools.quickstart.errors import WrongAnswer
from tests.support.scripted_engine import ScriptedEngine, tokens_of


def _body(**script: object) -> dict[str, Any]:
    return {"model": "scripted", "messages": [{"role": "user", "content": "hi"}], "script": script}


def _stream(client: Client, body: dict[str, Any]) -> tuple[str, Streamed]:
    facts = Streamed()
    return "".join(client.stream_chat(body, facts)), facts


async def test_a_streamed_chat_is_put_together_and_timed() -> None:
    async with ScriptedEngine() as engine:
        text, facts = await asyncio.to_thread(_stream, Client(engine.port, "k"), _body(tokens=4))
    assert text == "".join(tokens_of("hi", 4))
    assert facts.done
    assert facts.first_token_s > 0


async def test_a_stream_that_ends_early_is_not_done() -> None:
    async with ScriptedEngine() as engine:
        client = Client(engine.port, "k")
        _, facts = await asyncio.to_thread(_stream, client, _body(fault="close", after=2))
    assert not facts.done


async def test_an_error_status_says_what_the_gateway_said() -> None:
    async with ScriptedEngine() as engine:
        client = Client(engine.port, "k")
        with pytest.raises(WrongAnswer, match=r"answered 503: .*as the script says"):
            await asyncio.to_thread(client.post, "/v1/chat/completions", _body(status=503))


async def test_the_models_on_offer_are_listed_and_none_when_nobody_answers() -> None:
    async with ScriptedEngine(models=("a", "b")) as engine:
        port = engine.port
        assert await asyncio.to_thread(Client(port, "k").models) == ("a", "b")
    assert await asyncio.to_thread(Client(port, "k").models) == ()
    assert not await asyncio.to_thread(Client(port, "k").ready)


@pytest.mark.parametrize(
    ("engines", "words"),
    [
        ([], ""),
        ([{"status": "loaded", "reason": "", "loading": ""}], ""),
        ([{"status": "loading", "reason": "reading", "loading": "45 %, 12 s"}], "reading, 45 %, 12 s"),
        ([{"status": "failed", "reason": "no memory", "loading": ""}], "no memory"),
    ],
)
def test_what_engines_do_that_do_not_serve_yet_is_told(
    engines: list[dict[str, str]], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(1, "k")
    monkeypatch.setattr(
        Client, "get", lambda self, path: {"agents": [{"engines": engines}, {"name": "away"}]}
    )
    assert client.loading() == words


def test_while_nobody_answers_nothing_is_told_of_engines() -> None:
    assert Client(9, "k").loading() == ""
