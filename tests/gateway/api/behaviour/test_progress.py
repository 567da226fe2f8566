"""Progress for clients that ask for it, and for nobody else."""

import asyncio

import httpx
import pytest
from openai import AsyncOpenAI

from gateway.api.exchange.exchange import HttpSettings
from gateway.api.exchange.progress_writer import EVERY_S
from gateway.domain.request import Request
from shared.protocol.progress import Progress
from tests.gateway.api.support import CHAT, EVENTS, KEY, FakeResponse, Surface, json_response, served

ASKS = "x-trunkline-progress"
PIECE = (
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}\n\n'
)
DONE = b"data: [DONE]\n\n"
HALF = b': progress {"fraction":0.5,"text":"step 1"}\n\n'


class Working:
    """An engine that tells how far it is before its answer, and in the middle of it."""

    def __init__(self, response: FakeResponse, waits: asyncio.Event) -> None:
        self.response = response
        self.waits = waits
        """Set when the client has got what it was told before the answer."""

    async def __call__(self, request: Request) -> FakeResponse:
        if request.on_progress is not None:
            request.on_progress(Progress(0.5, "step 1"))
            await self.waits.wait()
        return self.response


async def read(url: str, body: dict[str, object], told: asyncio.Event, **headers: str) -> httpx.Response:
    headers["authorization"] = f"Bearer {KEY}"
    async with (
        httpx.AsyncClient(timeout=10) as client,
        client.stream("POST", f"http://{url}{CHAT}", json=body, headers=headers) as answer,
    ):
        content = b""
        async for piece in answer.aiter_raw():
            content += piece
            if b"progress" in content:
                told.set()
        answer._content = content
        return answer


@pytest.mark.parametrize("asks", ["1", "events"])
async def test_a_stream_is_told_of_before_its_first_token(asks: str) -> None:
    delivered: list[tuple[str, float]] = []
    surface = Surface(HttpSettings(progress_delivered=lambda model, s: delivered.append((model, s))))
    told = asyncio.Event()
    surface.dispatcher.serve = Working(FakeResponse(200, EVENTS, (PIECE, DONE)), told)
    async with served(surface) as url:
        answer = await read(url, {"model": "m", "stream": True}, told, **{ASKS: asks})
    first = HALF if asks == "1" else HALF.replace(b": progress ", b"event: progress\ndata: ")
    assert answer.content == first + PIECE + DONE
    assert [model for model, _ in delivered] == ["m"]
    assert ASKS not in dict(surface.dispatcher.request.headers)


@pytest.mark.parametrize("asks", [{}, {ASKS: "0"}])
async def test_who_does_not_ask_gets_what_the_engine_wrote(asks: dict[str, str]) -> None:
    surface, told = Surface(), asyncio.Event()
    surface.dispatcher.serve = Working(FakeResponse(200, EVENTS, (PIECE, DONE)), told)
    async with served(surface) as url:
        answer = await read(url, {"model": "m", "stream": True}, told, **asks)
    assert answer.content == PIECE + DONE
    assert surface.dispatcher.request.on_progress is None


async def test_an_answer_in_one_piece_is_what_it_would_be() -> None:
    surface, told = Surface(), asyncio.Event()
    told.set()
    surface.dispatcher.serve = Working(json_response(), told)
    async with served(surface) as url:
        answer = await read(url, {"model": "m"}, told, **{ASKS: "1"})
    assert answer.content == b'{"ok":true}'
    assert answer.headers["content-length"] == "11"


async def test_tokens_that_take_the_short_way_stay_whole_and_in_order() -> None:
    surface = Surface()
    response = surface.dispatcher.answer(FakeResponse(200, EVENTS, (PIECE,), ended=False))
    pieces = [b"data: %d\n\n" % number for number in range(300)]

    async def speak() -> None:
        await surface.dispatcher.arrived.wait()
        tell = surface.dispatcher.request.on_progress
        assert tell is not None
        for number, piece in enumerate(pieces):
            tell(Progress(number / 300))
            response.feed(piece[:4], piece[4:]) if number % 3 else response.feed(piece)
            if number % 10 == 0:
                await asyncio.sleep(0.005)
        response.end()

    loop = asyncio.get_running_loop()
    began_s = loop.time()
    async with served(surface) as url:
        speaking = asyncio.ensure_future(speak())
        answer = await read(url, {"model": "m", "stream": True}, asyncio.Event(), **{ASKS: "1"})
        await speaking
    comments = [part for part in answer.content.split(b"\n\n") if part.startswith(b": progress ")]
    assert 2 <= len(comments) <= (loop.time() - began_s) / EVERY_S + 2
    for comment in comments:
        answer._content = answer.content.replace(comment + b"\n\n", b"")
    assert answer.content == PIECE + b"".join(pieces)
    assert response.sunk > 0


async def test_openais_sdk_does_not_notice() -> None:
    surface, told = Surface(), asyncio.Event()
    surface.dispatcher.serve = Working(FakeResponse(200, EVENTS, (PIECE, PIECE, DONE)), told)
    told.set()
    async with (
        served(surface) as url,
        AsyncOpenAI(api_key=KEY, base_url=f"http://{url}/v1", max_retries=0) as sdk,
    ):
        stream = await sdk.chat.completions.create(
            model="m", messages=[], stream=True, extra_headers={ASKS: "1"}
        )
        assert [chunk.choices[0].delta.content async for chunk in stream] == ["hi", "hi"]


async def test_a_header_that_cannot_be_read_is_refused() -> None:
    surface = Surface()
    call = await surface.post(CHAT, b'{"model":"m"}', (ASKS.encode(), b"sometimes"))
    assert call.status == 400
    assert b"invalid_progress" in call.content
