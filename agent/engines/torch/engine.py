"""One loaded model as the HTTP surface sees it: messages and prompts in, texts and vectors out."""

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from agent.engines.admission import EngineAdmission
from agent.engines.torch import batching
from agent.engines.torch.answers import PreparedTexts, TextAnswer
from agent.engines.torch.chat_requests import ChatRequest
from agent.engines.torch.classification import classifier
from agent.engines.torch.embedding import Embedder, embedder
from agent.engines.torch.generation import TextGenerator
from agent.engines.torch.guidance import is_available
from agent.engines.torch.logprobs import TokenTexts
from agent.engines.torch.manager import ResilientManager
from agent.engines.torch.models import LoadedModel, load
from agent.engines.torch.parsing import CompletionRequest
from agent.engines.torch.prompt_logprobs import prompt_logprobs
from agent.engines.torch.prompts import PromptBuilder
from agent.engines.torch.speech import SpeechTranscript, Transcriber
from agent.engines.torch.speech_requests import TranscriptionRequest
from agent.engines.torch.startup import PREPARING, READING, EngineFacts, EngineOptions
from agent.engines.torch.text import plain_text
from agent.engines.torch.text_reading import TextReader
from shared.process.request_errors import RouteNotFound

_log = logging.getLogger(__name__)


class TorchEngine:
    """Belongs to one event loop; computes in threads of its own."""

    def __init__(self, model: LoadedModel, manager: ResilientManager | None, queue: int) -> None:
        self.model = model
        self.manager = manager
        self.texts: TextGenerator | None = None
        if manager is not None:
            decode = partial(plain_text, model.tokenizer)
            self.texts = TextGenerator(manager, decode, eos_ids=model.eos_ids, slots=model.slots)
        self.token_texts = TokenTexts(model.tokenizer)
        self.vectors: Embedder | None = None
        # An attention that knows the paged cache only leaves no plain forward pass to embed with.
        paged = manager is not None and model.network.config._attn_implementation == "paged|eager"
        self.speech = Transcriber(model) if model.processor is not None else None
        if self.speech is None and not paged:
            self.vectors = classifier(model) if model.labels else embedder(model)
        self.admission = EngineAdmission(model.slots, queue, time.monotonic)
        self.failure: str | None = None
        """Why nothing can be computed any more."""
        self._tokenising = ThreadPoolExecutor(1, thread_name_prefix="tokenise")
        self._preparing = ThreadPoolExecutor(1, thread_name_prefix="prepare")
        """For what takes longer: grammars, and log probabilities of prompts."""
        plain = manager is not None and self.vectors is not None
        self._prompts = PromptBuilder(model, partial(prompt_logprobs, model) if plain else None)
        self.reader = TextReader(model, self.vectors, self._prompts.token_ids, self._tokenising)
        self.facts = EngineFacts(
            model=model.name,
            routes=self._routes(),
            slots=model.slots,
            queue=queue,
            context_tokens=model.context_tokens,
            device=str(model.device),
            created=int(time.time()),
            capabilities=self._capabilities(),
        )

    @classmethod
    def load(cls, options: EngineOptions, report: Callable[[str], None] = lambda step: None) -> "TorchEngine":
        """Blocks for as long as loading takes, and reports each step. Raises ModelUnusable."""
        report(READING)
        model, manager = load(options), None
        report(PREPARING)
        if model.generates:
            model, manager = batching.start(model)
        return cls(model, manager, model.slots if options.queue is None else options.queue)

    def start(self, on_failure: Callable[[str], None]) -> None:
        """Deliver answers to the running loop from now on. ``on_failure`` is called with the reason when
        computing has ended."""

        def broken(error: BaseException) -> None:
            self.failure = f"computing has come to an end: {error}"
            on_failure(self.failure)

        if self.vectors is not None:
            self.vectors.on_broken = broken
        if self.manager is not None and self.texts is not None:
            self.manager.on_broken = broken
            self.manager.deliver_to(asyncio.get_running_loop(), self.texts)

    def stop(self, timeout_s: float) -> bool:
        """Give up what runs. Whether the computing thread ended within ``timeout_s``."""
        if self.texts is not None:
            self.texts.stop()
        if self.vectors is not None:
            self.vectors.stop()
        if self.speech is not None:
            self.speech.stop()
        self._tokenising.shutdown(wait=False, cancel_futures=True)
        self._preparing.shutdown(wait=False, cancel_futures=True)
        return self.manager is None or self.manager.halt(timeout_s)

    @property
    def running(self) -> int:
        """Requests being computed."""
        return (self.texts.running if self.texts else 0) + min(self._others, self.model.slots)

    @property
    def waiting(self) -> int:
        """Requests that wait to be."""
        return (self.texts.waiting if self.texts else 0) + max(0, self._others - self.model.slots)

    @property
    def _others(self) -> int:
        """Requests that generate no text."""
        return self.reader.reading + (0 if self.speech is None else self.speech.requests)

    async def transcribe(self, request: TranscriptionRequest, recording: bytes) -> SpeechTranscript:
        """What is said in a recording. Raises a RequestError."""
        if self.speech is None:
            raise RouteNotFound(f"The model {self.model.name} does not transcribe.")
        return await self.speech.transcribe(request, recording)

    async def chat(self, request: ChatRequest) -> TextAnswer:
        """Begin the answer to a chat. Raises a RequestError; the caller closes what it gets."""
        if not self.model.has_template:
            raise RouteNotFound(
                f"The model {self.model.name} has no chat template: it can complete text (/v1/completions) "
                "but not chat."
            )
        slow = request.demands_call or bool(request.response_format)
        return await self._begin(partial(self._prompts.chat, request), slow)

    async def complete(self, request: CompletionRequest) -> TextAnswer:
        """Begin the continuations of texts. Raises a RequestError; the caller closes what it gets."""
        slow = bool(request.response_format) or (request.echo and request.logprobs is not None)
        return await self._begin(partial(self._prompts.completion, request), slow)

    def _routes(self) -> tuple[str, ...]:
        offered = {
            "chat": self.model.has_template,
            "completions": self.model.generates,
            "audio": self.speech is not None,
        }
        return (*(name for name, there in offered.items() if there), *self.reader.routes)

    def _capabilities(self) -> tuple[str, ...]:
        """What the model can do, in Ollama's words where it has one for it."""
        routes = self._routes()
        there = {
            "completion": self.model.generates,
            "tools": self.model.has_template,
            "structured_outputs": self.model.generates and bool(self.model.eos_ids) and is_available(),
            "embedding": "embeddings" in routes,
            "rerank": "rerank" in routes,
            "classification": "classify" in routes,
            "transcription": self.speech is not None,
        }
        return tuple(word for word, can in there.items() if can)

    async def _begin(self, prepare: Callable[[], PreparedTexts], slow: bool) -> TextAnswer:
        """``slow``: preparing may take seconds, so others do not wait for it."""
        if self.texts is None:
            raise RouteNotFound(f"The model {self.model.name} generates no text.")
        prepared: PreparedTexts = await self._in_thread(prepare, pool=self._preparing if slow else None)
        return TextAnswer(self.texts, prepared)

    async def _in_thread(
        self, function: Callable[..., Any], *arguments: Any, pool: ThreadPoolExecutor | None = None
    ) -> Any:
        """Tokenising a long prompt takes long, so it happens outside the event loop."""
        running = asyncio.get_running_loop().run_in_executor
        return await running(pool or self._tokenising, function, *arguments)
