"""The bodies of requests: from a file, or made to a length."""

import itertools
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from gateway.tools.bench.plan import BadPlan, BenchPlan, BenchRoute
from shared.process.excerpt import shortened

_FILE_BYTES = 256 * 2**20
_SAID_CHARS = 60
_WORDS = "the of and to in is that for it as was with be by on not".split()  # noqa: SIM905
"""Each is one token for every common tokenizer."""

Prompt = str | list[Any]
"""A text, or the messages of a chat."""
Prompts = Sequence[Prompt] | Iterator[Prompt]


def read_prompts(path: Path) -> list[Prompt]:
    """The prompts of a file: of ``.jsonl`` each line a string, ``{"prompt": …}`` or ``{"messages": […]}``, of
    any other each line as it is. Empty lines are left out. Raises BadPlan."""
    try:
        if path.stat().st_size > _FILE_BYTES:
            raise BadPlan("--prompts", f"{path} is larger than {_FILE_BYTES >> 20} MiB")
        lines = path.read_text("utf-8-sig").split("\n")  # a text may hold what splitlines() takes for an end
    except (OSError, UnicodeDecodeError) as error:
        raise BadPlan("--prompts", f"{path} cannot be read: {error}") from error
    found: list[Prompt] = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            found.append(_prompt_of(line, f"{path}:{number}") if path.suffix == ".jsonl" else line)
    if not found:
        raise BadPlan("--prompts", f"{path} holds no prompt")
    return found


def _prompt_of(line: str, where: str) -> Prompt:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise BadPlan("--prompts", f"{where}: {error}: {shortened(line, _SAID_CHARS)!r}") from error
    if isinstance(value, dict):
        value = value.get("messages", value.get("prompt"))
    if (isinstance(value, str) and value) or (isinstance(value, list) and value):
        return value
    raise BadPlan("--prompts", f'{where}: neither a string nor {{"prompt": "…"}} nor {{"messages": […]}}')


def made_prompts(tokens: int, seed: int) -> Iterator[Prompt]:
    """Endlessly, each of about ``tokens`` tokens and unlike the others from its first word on, so that no
    engine has it cached."""
    chance = random.Random(seed)
    words = [chance.choice(_WORDS) for _ in range(max(0, tokens - 4))]
    text = " ".join(words)
    for number in itertools.count():
        yield f"{chance.getrandbits(32):08x} {number} {text}"


def bodies(prompts: Prompts, plan: BenchPlan, model: str, more: dict[str, Any]) -> Iterator[bytes]:
    """Endlessly, one request's JSON after the other; a sequence of prompts is gone through again and again.
    ``more`` are further members, which win. Raises BadPlan for prompts that the route does not take."""
    common: dict[str, Any] = {"model": model}
    if plan.route is not BenchRoute.EMBEDDINGS:
        common |= {"max_tokens": plan.max_tokens, "stream": plan.stream}
        if plan.stream:
            common["stream_options"] = {"include_usage": True}
    for prompt in itertools.cycle(prompts) if isinstance(prompts, Sequence) else prompts:
        yield orjson.dumps({**common, **_input(plan.route, prompt), **more})


def _input(route: BenchRoute, prompt: Prompt) -> dict[str, Any]:
    if route is BenchRoute.CHAT:
        return {"messages": [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt}
    if not isinstance(prompt, str):
        raise BadPlan("--prompts", f"messages are for chat; {route.value} takes texts")
    return {"input" if route is BenchRoute.EMBEDDINGS else "prompt": prompt}
