"""One request for a prompt, from its body to its answer."""

import asyncio
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson

from agent.engines.backend import BackendBody, ResponseReceiver, read_whole
from agent.engines.comfyui.answers import AnswerFailed, PromptAnswer
from agent.engines.comfyui.engine import PromptEngine, PromptFollower
from agent.engines.comfyui.previews import PreviewFitter
from agent.engines.comfyui.requests import AskedPrompt, read_asked
from agent.engines.comfyui.results import PromptError
from agent.engines.comfyui.server import PromptRefused
from agent.engines.comfyui.workflows import InputMistake, Workflow, put
from agent.engines.http.engine_client import EngineClient
from shared.protocol.messages import RequestHead
from shared.protocol.progress import Progress

REQUEST_BYTES = 64 * 1024 * 1024
"""Longest request that is taken; files in it are held here until they are uploaded."""

PARSED_HERE_BYTES = 64 * 1024
"""A request up to this is read on the event loop."""

OnEnd = Callable[[Exception | None], None]


@dataclass(frozen=True, slots=True)
class CallContext:
    """What every call of one server has in common."""

    client: EngineClient
    engine: PromptEngine
    output_bytes: int
    previews: PreviewFitter
    note_prompt: Callable[[str, AskedPrompt, PromptFollower], None] = lambda prompt_id, asked, follower: None
    """Told of each prompt before it is sent."""


class PromptCall:
    """Implements :class:`agent.engines.backend.BackendRequest`."""

    def __init__(
        self,
        context: CallContext,
        head: RequestHead,
        workflow: Workflow | None,
        body: BackendBody,
        receiver: ResponseReceiver,
        on_end: OnEnd,
    ) -> None:
        """``workflow`` is the one that is asked for; None: the request brings its own. ``on_end`` is as with
        :class:`agent.engines.http.client.call.EngineCall`."""
        self._context = context
        self._head = head
        self._workflow = workflow
        self._body = body
        self._receiver = receiver
        self._on_end = on_end
        self._answer = PromptAnswer(context.client, receiver, context.output_bytes)
        self._over = False
        self._task = asyncio.get_running_loop().create_task(self._run())

    def resume(self) -> None:
        self._answer.resume()

    def let_go(self) -> None:
        if not self._over:
            self._over = True
            self._answer.let_go()
            self._task.cancel()
            self._on_end(None)

    async def _run(self) -> None:
        failure: Exception | None = None
        try:
            await self._answered()
        except Exception as error:
            failure = error
        if not self._over:
            self._over = True
            self._on_end(failure)
            self._receiver.on_over(failure)

    async def _answered(self) -> None:
        """Computes the answer and sends it. Raises what is no answer."""
        try:
            asked = await self._asked(await self._read())
            said, record = await self._computed(asked)
            await self._answer.send(asked, record, said)
        except InputMistake as mistake:
            error = PromptError(400, mistake.message, mistake.code, mistake.param or None)
            await self._answer.send_json(400, {"error": error.to_dict()})
        except PromptRefused as refused:
            await self._answer.send_json(refused.error.status, _refusal(self._head.path, refused))
        except AnswerFailed as failed:
            await self._answer.send_json(failed.error.status, {"error": failed.error.to_dict()})

    async def _read(self) -> bytes:
        """The whole body. Raises :class:`InputMistake` for one that is too long."""
        body = await read_whole(self._body, REQUEST_BYTES)
        if body is None:
            raise InputMistake(f"A request may have {REQUEST_BYTES} bytes.", "", "request_too_large")
        return body

    async def _asked(self, body: bytes) -> AskedPrompt:
        fields = {name.lower(): text for name, text in self._head.headers}
        path = self._head.path.partition("?")[0]
        content_type, accept = fields.get("content-type", ""), fields.get("accept", "")
        read = partial(read_asked, path, self._workflow, content_type, accept, body)
        return read() if len(body) <= PARSED_HERE_BYTES else await asyncio.to_thread(read)

    async def _computed(self, asked: AskedPrompt) -> tuple[dict[str, Any], dict[str, Any]]:
        """The server's answer to the prompt, and the prompt's record."""
        engine, prompt_id = self._context.engine, str(uuid.uuid4())
        follower = PromptFollower(asked.prompt, self._tell)
        follower.shrink = self._context.previews.fit
        self._context.note_prompt(prompt_id, asked, follower)

        async def submit() -> dict[str, Any]:
            prompt = dict(asked.prompt)
            for file in asked.files:
                put(prompt, file.places, await engine.server.upload(file))
            extra = _with_request(asked.extra, self._head.request_id)
            client_id = engine.socket.client_id
            return await engine.server.submit(prompt, prompt_id, client_id, extra, asked.workflow)

        return await engine.run(prompt_id, follower, submit)

    def _tell(self, told: Progress) -> None:
        if not self._over:
            self._receiver.on_progress(told)


def _refusal(path: str, refused: PromptRefused) -> object:
    """A client of ComfyUI gets ComfyUI's own words."""
    if path.partition("?")[0].endswith("/prompt"):
        try:
            return orjson.loads(refused.body)
        except orjson.JSONDecodeError:
            pass
    return {"error": refused.error.to_dict()}


def _with_request(extra: Mapping[str, Any], request_id: str) -> dict[str, Any]:
    """``extra`` with the request's id, which ComfyUI keeps beside the prompt."""
    data = {**extra.get("extra_data", {}), "trunkline_request": request_id}
    return {**extra, "extra_data": data}
