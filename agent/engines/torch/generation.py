"""What waits and what runs, on the event loop's side of the computing thread: texts."""

import asyncio
import itertools
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from transformers.generation.continuous_batching.requests import GenerationOutput

from agent.engines.torch.errors import GrammarFailed, Stopping, request_error
from agent.engines.torch.logprobs import TokenLogprob
from agent.engines.torch.manager import ResilientManager
from agent.engines.torch.parsing import Sampling
from agent.engines.torch.sampling import KEYWORD, Guide, TextSampling
from agent.engines.torch.shapes import TokenUsage
from agent.engines.torch.text import TextAssembler
from shared.process.request_errors import RequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """Everything that decides a text. ``max_tokens`` fits the context together with ``ids``; 0: the text is
    at its end already. ``continued``: how many of ``ids`` are the beginning of the text, if it has one.
    ``guide`` is that of this text alone. ``decode`` makes text of tokens, if not the generator's way does.
    ``whole``: nobody reads the text before its end, and nothing but its length and its last token ends it."""

    ids: tuple[int, ...]
    max_tokens: int
    sampling: Sampling
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    continued: int | None = None
    guide: Guide | None = field(default=None, compare=False)
    decode: Callable[[list[int]], str] | None = field(default=None, compare=False)
    whole: bool = False


class TextPiece(NamedTuple):
    """Text that was added, and its tokens, if their log probabilities were asked for."""

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


class Generation:
    """One text. Belongs to one reader, who closes it whatever happens."""

    def __init__(
        self,
        owner: "TextGenerator",
        request_id: str,
        prompt: Prompt,
        assembler: TextAssembler,
        news: asyncio.Event,
    ) -> None:
        """``news`` is set whenever :meth:`take` may have something new."""
        self.id = request_id
        self.prompt = prompt
        self.sampling = TextSampling(
            prompt.sampling,
            begun=prompt.continued or 0,
            guide=prompt.guide,
            most_tokens=prompt.max_tokens,
            whole=prompt.whole,
        )
        self.finish_reason: str | None = None
        """"stop" or "length" once the text is whole."""
        self._owner = owner
        self._assembler = assembler
        self._tokens = 0
        self._said = 0
        self._unsaid: list[TokenLogprob] = []
        """Tokens whose text was not said yet."""
        self._pieces: list[TextPiece] = []
        """Not read yet. Bounded by the tokens of the context."""
        self._error: RequestError | None = None
        self._news = news

    @property
    def usage(self) -> TokenUsage:
        return TokenUsage(len(self.prompt.ids), self._tokens, self.prompt.continued)

    def take(self) -> list[TextPiece]:
        """What was added since the last call; :attr:`finish_reason` says whether the text is whole with it.

        Raises a :class:`RequestError` when it never will be.
        """
        pieces, self._pieces = self._pieces, []
        if not pieces and self._error is not None:
            raise self._error
        return pieces

    def close(self) -> None:
        """Stop computing it, if it still is. Idempotent."""
        self._owner.drop(self)

    def grow(self, output: GenerationOutput) -> bool:
        """Take in what a step added. Whether the text is whole."""
        start = self._tokens
        tokens = output.generated_tokens[start:]
        self._tokens += len(tokens)
        if self.sampling.error is not None:
            self.fail(GrammarFailed(f"The grammar of the answer cannot be followed: {self.sampling.error}"))
            return True
        ended = not self.prompt.ignore_eos and bool(tokens) and tokens[-1] in self._owner.eos_ids
        text = self._push(tokens[:-1] if ended else tokens, start)
        if self._assembler.stopped:
            self.finish_reason = "stop"
        elif output.is_finished():
            text += self._assembler.finish()
            self.finish_reason = "stop" if ended or self._assembler.stopped else "length"
        self._say(text)
        return self.finish_reason is not None

    def _push(self, tokens: list[int], start: int) -> str:
        """The text that can be said with ``tokens``, of which the first is the ``start``-th of the answer."""
        if self.prompt.sampling.top_logprobs is None:
            return self._assembler.push(tokens)
        text = ""
        for token, entry in zip(tokens, self.sampling.logprobs[start:], strict=False):
            self._unsaid.append(entry._replace(offset=self._assembler.decoded))
            text += self._assembler.push([token])
        return text

    def _say(self, text: str) -> None:
        ended = self.finish_reason is not None
        self._said += len(text)
        cut = self._said
        if ended and not self._assembler.stopped:
            cut = self._assembler.decoded + 1  # tokens without text at the end count too
        said = tuple(entry for entry in self._unsaid if entry.offset < cut)
        if text or (ended and said):
            self._pieces.append(TextPiece(text, said))
            self._unsaid = self._unsaid[len(said) :]
        if text or ended:
            self._news.set()

    def fail(self, error: RequestError) -> None:
        self._error = error
        self._news.set()


class TextGenerator:
    """At most ``slots`` texts are computed at once; the others wait in order of arrival.

    How many may wait is not its concern: each is held by a request with a permit
    (:class:`agent.engines.admission.EngineAdmission`).
    """

    def __init__(
        self,
        manager: ResilientManager,
        decode: Callable[[list[int]], str],
        *,
        eos_ids: frozenset[int],
        slots: int,
    ) -> None:
        self.eos_ids = eos_ids
        self._manager = manager
        self._decode = decode
        self._slots = slots
        self._ids = itertools.count()
        self._running: dict[str, Generation] = {}
        self._waiting: deque[Generation] = deque()
        self._stopped: RequestError | None = None

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def submit(self, prompt: Prompt, news: asyncio.Event | None = None) -> Generation:
        """Begin a text, or let it wait. ``news`` is set when there is more of it. Raises Stopping."""
        if self._stopped is not None:
            raise self._stopped
        if prompt.sampling.seed is None:
            prompt = replace(prompt, sampling=replace(prompt.sampling, seed=secrets.randbits(62)))
        assembler = TextAssembler(prompt.decode or self._decode, prompt.stop)
        generation = Generation(self, f"text-{next(self._ids)}", prompt, assembler, news or asyncio.Event())
        if prompt.max_tokens <= 0:
            generation.finish_reason = "length"
            return generation
        self._waiting.append(generation)
        self._start_waiting()
        return generation

    def drop(self, generation: Generation) -> None:
        """The reader wants no more of it: its slot goes to the next."""
        if self._running.pop(generation.id, None) is not None:
            self._manager.cancel_request(generation.id)
            self._start_waiting()
        elif generation in self._waiting:
            self._waiting.remove(generation)

    def stop(self) -> None:
        """No text begins from now on, and those begun are given up."""
        self._stopped = Stopping("The engine is stopping; send the request again.")
        for generation in [*self._running.values(), *self._waiting]:
            generation.fail(self._stopped)
        self._running.clear()
        self._waiting.clear()

    def on_outputs(self, outputs: Sequence[GenerationOutput]) -> None:
        for output in outputs:
            generation = self._running.get(output.request_id)
            if generation is None:
                # Cancelled just as the manager took it in: between its looks at new requests and at
                # cancellations.
                if not output.is_finished():
                    self._manager.cancel_request(output.request_id)
                continue
            if generation.grow(output):
                del self._running[generation.id]
                if not output.is_finished():
                    self._manager.cancel_request(generation.id)
        self._start_waiting()

    def on_failure(self, request_id: str, error: BaseException) -> None:
        generation = self._running.pop(request_id, None)
        if generation is not None:
            generation.fail(request_error(error))
        self._start_waiting()

    def _start_waiting(self) -> None:
        """Give free slots to those that wait. A cancellation put before a request takes effect before it."""
        while self._waiting and len(self._running) < self._slots:
            generation = self._waiting.popleft()
            prompt = generation.prompt
            self._running[generation.id] = generation
            taken = self._manager.add_request(
                list(prompt.ids),
                request_id=generation.id,
                max_new_tokens=prompt.max_tokens,
                streaming=True,
                eos_token_id=[-1] if prompt.ignore_eos else None,
                **{KEYWORD: generation.sampling},
            )
            if taken is None:
                del self._running[generation.id]
                generation.fail(Stopping("The engine is about to start again; send the request again."))
