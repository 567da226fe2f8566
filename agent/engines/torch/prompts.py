"""From requests to prompts: rendered, tokenised, with what the answer is held to. Runs in a thread."""

import hashlib
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from agent.engines.torch.answers import PreparedTexts
from agent.engines.torch.chat_requests import ChatRequest, NamedTool
from agent.engines.torch.errors import InvalidRequest
from agent.engines.torch.generation import Prompt, TextPiece
from agent.engines.torch.guidance import Guidance, TextGuide
from agent.engines.torch.logprobs import TokenLogprob
from agent.engines.torch.models import LoadedModel
from agent.engines.torch.parsing import CompletionRequest, TextRequest
from agent.engines.torch.text import Rendered, TextAssembler, plain_text, render, template_of
from agent.engines.torch.tool_calls import ARGS, ToolCallReader, ToolFormat, tool_format
from shared.process.request_errors import ContextTooLong

PromptLogprobs = Callable[[Sequence[int], int], list[TokenLogprob]]
"""The log probabilities of a prompt's tokens, with so many alternatives."""


def choice_seed(seed: int, choice: int) -> int:
    """The seed of one of several choices. The first has the request's own, so that it is the same with and
    without others."""
    if choice == 0:
        return seed
    digest = hashlib.blake2b(struct.pack("<qq", seed, choice), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


class PromptBuilder:
    """Prepares the texts of requests to one model. Every method raises RequestErrors."""

    def __init__(self, model: LoadedModel, prompt_logprobs: PromptLogprobs | None) -> None:
        self._model = model
        self._prompt_logprobs = prompt_logprobs
        self.guidance = Guidance(model)

    def chat(self, request: ChatRequest) -> PreparedTexts:
        rendered = render(self._model.tokenizer, request)
        form = tool_format(template_of(self._model.tokenizer))
        if request.demands_call:
            several = request.parallel_tool_calls and request.tool_choice == "required"
            guide: TextGuide | None = self.guidance.calls(request.offered, form, several=several)
        else:
            guide = self._guide(request)
        begun = rendered.ids[len(rendered.ids) - (rendered.continued or 0) :]
        if guide is not None and not guide.takes(begun):
            raise InvalidRequest("What the answer begins with does not fit its format.", param="messages")
        prompt = self._prompt(rendered, request, "messages")
        reader = None
        if request.offered:
            prompt = replace(prompt, decode=self._decoder(form), whole=False)
            reader = partial(
                ToolCallReader,
                form,
                begun=bool(begun),
                several=request.parallel_tool_calls,
                named=isinstance(request.tool_choice, NamedTool),
            )
        return PreparedTexts(_choices(prompt, guide, request.n), request.n, reader=reader)

    def completion(self, request: CompletionRequest) -> PreparedTexts:
        guide = self._guide(request)
        prompts: list[Prompt] = []
        echoes: list[TextPiece] = []
        for index, given in enumerate(request.prompt):
            param = "prompt" if len(request.prompt) == 1 else f"prompt[{index}]"
            ids = tuple(self.token_ids(given, param))
            prompts += _choices(self._prompt(Rendered(ids), request, param), guide, request.n)
            if request.echo:
                echoes += [self._echo(given, ids, request)] * request.n
        return PreparedTexts(tuple(prompts), request.n, tuple(echoes))

    def token_ids(self, text: str | Sequence[int], param: str) -> list[int]:
        """The tokens of a text, or those given. Raises InvalidRequest."""
        if isinstance(text, str):
            ids = list(self._model.tokenizer(text).input_ids)
        else:
            ids = list(text)
            if max(ids) >= self._model.vocabulary:
                raise InvalidRequest(
                    f"{param} holds the token id {max(ids)}; the model has {self._model.vocabulary} tokens.",
                    param=param,
                )
        if not ids:
            raise InvalidRequest(f"{param} must not be empty.", param=param)
        return ids

    def _guide(self, request: TextRequest) -> TextGuide | None:
        if request.response_format is None:
            return None
        return self.guidance.json(request.response_format.schema_of_answer)

    def _prompt(self, rendered: Rendered, request: TextRequest, param: str) -> Prompt:
        sampling = request.sampling
        if any(token >= self._model.vocabulary for token, _ in sampling.logit_bias):
            raise InvalidRequest(
                f"logit_bias holds a token id of {self._model.vocabulary} or more.", param="logit_bias"
            )
        return Prompt(
            ids=rendered.ids,
            max_tokens=max_tokens(self._model.context_tokens, rendered, request, param),
            sampling=sampling,
            stop=tuple(request.stop),
            ignore_eos=request.ignore_eos,
            continued=rendered.continued,
            whole=not (request.stream or request.stop or request.response_format),
        )

    def _echo(self, given: str | Sequence[int], ids: Sequence[int], request: CompletionRequest) -> TextPiece:
        decode = partial(plain_text, self._model.tokenizer)
        text = given if isinstance(given, str) else decode(list(ids))
        if request.logprobs is None:
            return TextPiece(text)
        if self._prompt_logprobs is None:
            raise InvalidRequest(
                "This model gives no log probabilities of prompts: leave out echo or logprobs.",
                param="echo",
                code="unsupported_parameter",
            )
        assembler, placed = TextAssembler(decode), []
        for entry in self._prompt_logprobs(ids, request.logprobs):
            placed.append(entry._replace(offset=assembler.decoded))
            assembler.push([entry.token])
        return TextPiece(text, tuple(placed))

    def _decoder(self, form: ToolFormat) -> Callable[[list[int]], str]:
        """Text with the marks of calls, which for some tokenizers are control tokens and so no text."""
        tokenizer = self._model.tokenizer
        added = tokenizer.get_added_vocab()
        special = set(tokenizer.all_special_ids)
        marks = {added[mark]: mark for mark in (form.value, form.end, ARGS) if added.get(mark) in special}
        plain = partial(plain_text, tokenizer)
        return partial(_decode_with, plain, marks) if marks else plain


def _decode_with(plain: Callable[[list[int]], str], marks: dict[int, str], ids: list[int]) -> str:
    texts: list[str] = []
    run: list[int] = []
    for token in ids:
        if token in marks:
            texts += [plain(run) if run else "", marks[token]]
            run = []
        else:
            run.append(token)
    return "".join([*texts, plain(run) if run else ""])


def _choices(prompt: Prompt, guide: TextGuide | None, n: int) -> tuple[Prompt, ...]:
    """The prompt once for each choice, with a seed and a guide of its own."""
    seed = prompt.sampling.seed
    return tuple(
        replace(
            prompt,
            guide=None if guide is None else guide.copy(),
            sampling=replace(prompt.sampling, seed=None if seed is None else choice_seed(seed, choice)),
        )
        for choice in range(n)
    )


def max_tokens(context: int, rendered: Rendered, request: TextRequest, param: str) -> int:
    """How many tokens the answer may get. One that is continued ends where it would have ended undisturbed.

    Raises ContextTooLong."""
    wanted, prompt_tokens = request.max_tokens, len(rendered.ids)
    room = max(0, context - prompt_tokens)
    if rendered.continued:
        if isinstance(request, ChatRequest) and request.continued_max_tokens is not None:
            wanted = max(0, request.continued_max_tokens - rendered.continued)
        return room if wanted is None else min(room, wanted)
    asked = f"The model's maximum context length is {context} tokens, but the {param} has {prompt_tokens}"
    if prompt_tokens > context or (not room and wanted != 0):
        raise ContextTooLong(f"{asked}. Shorten it.", param=param)
    if wanted is not None and wanted > room:
        raise ContextTooLong(
            f"{asked} and {wanted} more were asked for. Shorten it, or ask for fewer.", param=param
        )
    return room if wanted is None else wanted
