"""Clients with OpenAI's own SDK, which must be able to read everything that comes."""

import asyncio
from collections.abc import Callable
from typing import Any

import openai
from openai import AsyncOpenAI

from tests.chaos.answers import Answer, take_body, take_event
from tests.chaos.asks import Ask
from tests.chaos.checks import Failure, judge
from tests.chaos.clients import MODEL_HEADER, PATIENCE_S, failure_of
from tests.chaos.outcome import Outcome


async def ask_sdk(sdk: AsyncOpenAI, ask: Ask, clock: Callable[[], float]) -> Outcome:
    """As :func:`tests.chaos.clients.ask_http`, with the SDK. Raises nothing that the SDK documents."""
    began_s = clock()
    answer, failure = Answer(), None
    pause_s = 0.0
    try:
        async with asyncio.timeout(PATIENCE_S):
            pause_s = await _converse(sdk, ask, answer, clock)
    except openai.APIStatusError as error:
        body = error.body if isinstance(error.body, dict) else {}
        failure = failure_of(body, error.status_code)
    except openai.APIConnectionError as error:
        failure = Failure("connection", type(error.__cause__ or error).__name__, message=str(error))
    except openai.APIError as error:
        failure = failure_of(error.body if isinstance(error.body, dict) else {}, 200)
    except TimeoutError:
        failure = Failure("connection", f"silent for {PATIENCE_S:.0f} s")
    except Exception as error:  # what httpx raises in the middle of a stream goes past the SDK
        failure = Failure("connection", type(error).__name__, message=str(error)[:200])
    finding = judge(ask, answer, failure)
    return Outcome(ask, finding, failure, began_s, clock(), pause_s=pause_s)


async def _converse(sdk: AsyncOpenAI, ask: Ask, answer: Answer, clock: Callable[[], float]) -> float:
    """Returns the longest time between two events."""
    resource: Any = {
        "chat": sdk.chat.completions,
        "completions": sdk.completions,
        "responses": sdk.responses,
    }[ask.route]
    body = ask.body()
    script = body.pop("script", None)
    more: dict[str, Any] = {"extra_headers": {MODEL_HEADER: ask.model}}
    got = await resource.create(**body, **more, extra_body={"script": script} if script else None)
    if not ask.stream:
        take_body(ask.route, got.model_dump(), answer)
        return 0.0
    last_s, pause_s = clock(), 0.0
    first = True
    async for event in got:
        now_s = clock()
        pause_s = pause_s if first else max(pause_s, now_s - last_s)
        last_s, first = now_s, False
        take_event(ask.route, event.model_dump(exclude_unset=True), answer)
    if ask.route != "responses":
        answer.ended = bool(answer.finish)  # the SDK keeps [DONE] to itself
    return pause_s
