"""Questions to one ComfyUI server over HTTP."""

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import orjson

from agent.engines.backend import BackendError, BackendFailed, BackendUnreachable, WholeBody
from agent.engines.comfyui.results import PromptError, refusal
from agent.engines.comfyui.workflows import FileInput, Workflow
from agent.engines.http.engine_client import EngineClient, SmallResponse
from shared.protocol.messages import Headers, RequestHead
from shared.protocol.progress import Progress

SUBMIT_S = 60.0
"""ComfyUI checks a prompt before it answers, also that its models' files are there."""

UPLOAD_S = 300.0

SUBFOLDER = "trunkline"
"""Where uploaded files lie in ComfyUI's directory for temporary files, which it empties when it starts."""

_ABSENT = (404, 405)


class PromptRefused(Exception):
    """ComfyUI does not take the prompt; ``error`` says why, ``body`` is its answer, if it was asked."""

    def __init__(self, error: PromptError, body: bytes) -> None:
        super().__init__(error.message)
        self.error, self.body = error, body


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """Where a prompt is: it runs, or waits behind so many."""

    running: bool
    ahead: int


class ComfyUIServer:
    """Asks through ``client``. All raise the :class:`BackendError` that fits."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._cancels_jobs: bool | None = None
        """Whether it has ``/api/jobs/{id}/cancel``; None: not known yet."""

    async def submit(
        self,
        prompt: Mapping[str, Any],
        prompt_id: str,
        client_id: str,
        extra: Mapping[str, Any],
        workflow: Workflow | None,
    ) -> dict[str, Any]:
        """Queue ``prompt``; the answer, whose ``prompt_id`` is what ComfyUI calls it. Raises
        :class:`PromptRefused`. A server whose answer is lost is asked whether it has the prompt."""
        message = {**extra, "prompt": prompt, "prompt_id": prompt_id, "client_id": client_id}
        try:
            body = await asyncio.to_thread(orjson.dumps, message)
        except orjson.JSONEncodeError:
            error = PromptError(400, "The workflow is nested too deeply.", "invalid_workflow")
            raise PromptRefused(error, b"") from None
        try:
            answer = await self._client.ask("/prompt", "POST", body, SUBMIT_S)
        except BackendUnreachable:
            raise
        except BackendError:
            if await self.place(prompt_id) is None and await self.record(prompt_id) is None:
                raise
            return {"prompt_id": prompt_id, "number": 0, "node_errors": {}}
        said = await _parsed(answer)
        if answer.status != 200:
            raise PromptRefused(refusal(answer.status, said, workflow), answer.body)
        if not isinstance(said, dict) or not isinstance(said.get("prompt_id"), str):
            raise BackendFailed("the server took the prompt and did not say how it calls it")
        return said

    async def record(self, prompt_id: str) -> dict[str, Any] | None:
        """What the history has of a prompt that is over; None: nothing."""
        answer = await self._client.ask(f"/history/{quote(prompt_id, safe='')}")
        if answer.status != 200:
            raise BackendFailed(f"the server answers {answer.status} when asked for its history")
        said = await _parsed(answer)
        record = said.get(prompt_id) if isinstance(said, dict) else None
        return record if isinstance(record, dict) else None

    async def place(self, prompt_id: str) -> QueuePlace | None:
        """Where the prompt is in the queue; None: not there."""
        answer = await self._client.ask("/queue")
        said = await _parsed(answer)
        if answer.status != 200 or not isinstance(said, dict):
            raise BackendFailed(f"the server answers {answer.status} when asked for its queue")
        running, pending = _ids(said.get("queue_running")), _ids(said.get("queue_pending"))
        if any(each == prompt_id for _, each in running):
            return QueuePlace(True, 0)
        number = next((number for number, each in pending if each == prompt_id), None)
        if number is None:
            return None
        return QueuePlace(False, len(running) + sum(other < number for other, _ in pending))

    async def waiting(self) -> int:
        """How many prompts it has, of whomever."""
        answer = await self._client.ask("/prompt")
        said = answer.json()
        info = said.get("exec_info") if isinstance(said, dict) else None
        count = info.get("queue_remaining") if isinstance(info, dict) else None
        return count if isinstance(count, int) and count >= 0 else 0

    async def cancel(self, prompt_id: str) -> None:
        """Take the prompt out of the queue, or interrupt it if it runs, and no other. Servers from before
        0.3.57 or so interrupt whatever runs: they are told to only while that is this prompt."""
        if self._cancels_jobs is not False:
            path = f"/api/jobs/{quote(prompt_id, safe='')}/cancel"
            answer = await self._client.ask(path, "POST", b"{}")
            self._cancels_jobs = answer.status not in _ABSENT
            if answer.status == 200:
                return
        await self._client.ask("/queue", "POST", orjson.dumps({"delete": [prompt_id]}))
        place = await self.place(prompt_id)
        if place is not None and place.running:
            await self._client.ask("/interrupt", "POST", orjson.dumps({"prompt_id": prompt_id}))

    async def upload(self, file: FileInput) -> str:
        """Store ``file``; what a node's input is to say for it."""
        boundary = secrets.token_hex(16)
        body = await asyncio.to_thread(_form, boundary, file)
        answer = _Answer(asyncio.get_running_loop().create_future())
        fields = (
            ("content-type", f"multipart/form-data; boundary={boundary}"),
            ("content-length", str(len(body))),
        )
        head = RequestHead("", "POST", "/upload/image", fields, "", "")
        call = self._client.request(head, WholeBody(body), answer)
        try:
            async with asyncio.timeout(UPLOAD_S):
                await answer.over
        except TimeoutError:
            raise BackendFailed("the server does not take an upload") from None
        finally:
            call.let_go()
        said = SmallResponse(answer.status, bytes(answer.body)).json()
        if answer.error is not None:
            raise answer.error
        if answer.status != 200 or not isinstance(said, dict) or not isinstance(said.get("name"), str):
            raise BackendFailed(f"the server answers an upload with {answer.status}")
        subfolder = said.get("subfolder") or ""
        name = f"{subfolder}/{said['name']}" if subfolder else said["name"]
        return f"{name} [{said.get('type', 'temp')}]"


class _Answer:
    """A short answer."""

    tells_progress = False

    def __init__(self, over: asyncio.Future[None]) -> None:
        self.over, self.status, self.body = over, 0, bytearray()
        self.error: Exception | None = None

    def on_response(self, status: int, headers: Headers, *, whole: bool = False) -> None:
        self.status = status

    def on_progress(self, progress: Progress) -> None:
        pass

    def on_body(self, piece: bytes) -> bool:
        self.body += piece[: 64 * 1024]
        return True

    def on_over(self, error: Exception | None) -> None:
        self.error = error
        if not self.over.done():
            self.over.set_result(None)


PARSED_HERE_BYTES = 64 * 1024


async def _parsed(answer: SmallResponse) -> Any:
    """The JSON of an answer of whatever length; None: it is none. A long one is parsed in a thread."""
    try:
        if len(answer.body) <= PARSED_HERE_BYTES:
            return orjson.loads(answer.body)
        return await asyncio.to_thread(orjson.loads, answer.body)
    except orjson.JSONDecodeError:
        return None


def _ids(items: object) -> list[tuple[float, str]]:
    """Of each item of a queue its number and its prompt's id."""
    return [
        (float(item[0]), str(item[1]))
        for item in (items if isinstance(items, list) else [])
        if isinstance(item, list) and len(item) > 1 and isinstance(item[0], int | float)
    ]


def _form(boundary: str, file: FileInput) -> bytes:
    """The body of ``POST /upload/image``."""
    fields = {"type": "temp", "subfolder": SUBFOLDER, "overwrite": "true"}
    head = b"".join(
        f'--{boundary}\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in fields.items()
    )
    head += (
        f'--{boundary}\r\ncontent-disposition: form-data; name="image"; filename="{file.name}"\r\n'
        f"content-type: {file.media_type}\r\n\r\n"
    ).encode()
    return head + file.data + f"\r\n--{boundary}--\r\n".encode()
