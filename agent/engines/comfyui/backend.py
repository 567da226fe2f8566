"""The backend for a ComfyUI server: its workflows as models, each request one prompt."""

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import replace

from agent.engines.backend import BackendBody, BackendRequest, ResponseReceiver
from agent.engines.comfyui.call import CallContext, PromptCall
from agent.engines.comfyui.engine import PromptEngine, PromptFollower
from agent.engines.comfyui.previews import PreviewFitter
from agent.engines.comfyui.requests import AskedPrompt
from agent.engines.comfyui.server import ComfyUIServer
from agent.engines.comfyui.socket import EventSocket
from agent.engines.comfyui.workflow_library import WorkflowLibrary, WorkflowLister
from agent.engines.http.kind import COMFYUI, EngineKind
from agent.engines.http.models import EngineModel
from agent.engines.http.openai import OpenAIHTTPBackend
from agent.engines.http.probe import Lister
from agent.engines.settings import EngineSettings, base_url
from shared.protocol.messages import DeploymentState, RequestHead

WORKFLOWS = "/v1/workflows/"
PROMPT_PATHS = frozenset(("/prompt", "/api/prompt"))
_PROMPTED = PROMPT_PATHS | {"/v1/images/generations", "/v1/images/edits", "/v1/videos"}

NotePrompt = Callable[[str, AskedPrompt, PromptFollower], None]
NoteStatus = Callable[[int], None]


class ComfyUIBackend(OpenAIHTTPBackend):
    """Implements :class:`agent.engines.backend.Backend`. It has no paths but those of prompts."""

    listed_kind: EngineKind = COMFYUI

    def __init__(self, settings: EngineSettings) -> None:
        self._library = WorkflowLibrary(settings.workflows)
        self._wanted = settings.models
        super().__init__(settings)
        self._server = ComfyUIServer(self._client)
        client_id = f"trunkline-{uuid.uuid4()}"
        socket = EventSocket(base_url(settings.url), client_id, settings.api_key, settings.name)
        socket.on_status = self._note_remaining
        slots = settings.slots or COMFYUI.slots
        self.engine_runs = PromptEngine(self._server, socket, slots, settings.name)
        self._note_prompt: NotePrompt = lambda prompt_id, asked, follower: None
        self._on_status: NoteStatus = lambda remaining: None
        self._previews = PreviewFitter()
        self._context = CallContext(
            self._client,
            self.engine_runs,
            settings.output_bytes,
            self._previews,
            lambda *about: self._note_prompt(*about),
        )
        self._calls: set[PromptCall] = set()
        self.remaining = 0
        """Prompts that the server has, of whomever."""

    def _lister(self) -> Lister:
        lister = WorkflowLister(
            self._ask,
            self._library,
            self._wanted,
            lambda: asyncio.get_running_loop().time(),
            own=self.name,
        )

        async def listed() -> tuple[EngineModel, ...]:
            models = await lister()
            self._note_remaining(await self._server.waiting())
            return models

        return listed

    async def close(self) -> None:
        for call in tuple(self._calls):
            call.let_go()
        await self.engine_runs.close()
        await self._previews.close()
        await super().close()

    def deployments(self) -> tuple[DeploymentState, ...]:
        """What others have in the server's queue counts as waiting, a prompt that is being cancelled as
        running."""
        waiting = max(0, self.remaining - self.engine_runs.ours)
        running = self.engine_runs.withdrawing
        return tuple(
            replace(state, waiting=waiting, running=running, upgrades=False)
            for state in super().deployments()
        )

    def follow_prompts(self, note_prompt: NotePrompt, on_status: NoteStatus) -> None:
        """Have ``note_prompt`` told of each prompt before it is sent, and ``on_status`` of how many prompts
        the server has."""
        self._note_prompt, self._on_status = note_prompt, on_status

    def request(self, head: RequestHead, body: BackendBody, receiver: ResponseReceiver) -> BackendRequest:
        """See :meth:`agent.engines.backend.Backend.request`."""
        path = head.path.partition("?")[0]
        if head.method != "POST" or not (path in _PROMPTED or path.startswith(WORKFLOWS)):
            return self._send(head, body, receiver)
        workflow = self._library.workflows.get(head.model)
        self._began()
        calls = self._calls

        def on_end(error: Exception | None) -> None:
            calls.discard(call)
            self._request_over(error)

        call = PromptCall(self._context, head, workflow, body, receiver, on_end)
        calls.add(call)
        return call

    def _note_remaining(self, remaining: int) -> None:
        self.remaining = remaining
        self._on_status(remaining)
