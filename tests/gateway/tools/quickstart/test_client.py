"""The quickstart's requests, against an engine that misbehaves on request, and its check, which accepts what
is right and names what is not."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.tools.quickstart.client import Client, Streamed, WrongAnswer, run_checks
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
            await asyncio.to_thread(client.ask, "/v1/chat/completions", _body(status=503))


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
        Client, "ask", lambda self, path: {"agents": [{"engines": engines}, {"name": "away"}]}
    )
    assert client.loading() == words


def test_while_nobody_answers_nothing_is_told_of_engines() -> None:
    assert Client(9, "k").loading() == ""


class CannedClient(Client):
    """Answers from its attributes instead of from a gateway."""

    def __init__(self) -> None:
        super().__init__(port=1, key="k")
        self.pieces = ["One ", "endpoint."]
        self.done = True
        self.text = "One endpoint."
        self.completion_tokens = 3
        self.vectors = [[0.5, 1.0], [0.25, 1.0]]

    def stream_chat(self, body: dict[str, Any], facts: Streamed) -> Iterator[str]:
        facts.first_s = time.monotonic()
        yield from self.pieces
        facts.done = self.done

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        if path == "/v1/embeddings":
            return {"data": [{"embedding": vector} for vector in self.vectors]}
        usage = {"completion_tokens": self.completion_tokens}
        return {"choices": [{"message": {"content": self.text}}], "usage": usage}


def test_right_answers_give_a_verdict() -> None:
    verdict = run_checks(CannedClient(), "m")
    assert (verdict.answer, verdict.completion_tokens, verdict.dimensions) == ("One endpoint.", 3, 2)
    assert verdict.first_token_s >= 0


@pytest.mark.parametrize(
    ("attribute", "value", "complaint"),
    [
        ("done", False, "without data"),
        ("pieces", [" "], "empty"),
        ("text", "Another answer.", "the plain chat answered"),
        ("completion_tokens", 0, "counted no tokens"),
        ("vectors", [[1.0]], "two vectors"),
        ("vectors", [[1.0], [1.0, 2.0]], "two vectors"),
        ("vectors", [[1.0], [float("nan")]], "finite"),
        ("vectors", [[1.0], [1.0]], "the same embedding"),
    ],
)
def test_a_wrong_answer_is_named(attribute: str, value: object, complaint: str) -> None:
    client = CannedClient()
    setattr(client, attribute, value)
    with pytest.raises(WrongAnswer, match=complaint):
        run_checks(client, "m")
