"""Usage of an answer in parts, added up.

The continuation's prompt holds the answer so far. Those tokens come off the prompt and go to the completion,
so the total is exact whatever was counted; how it divides is as good as the count of tokens. An engine that
says how many tokens of its prompt were the continued answer (``continued_tokens`` among the details of the
prompt's tokens) makes that exact too.
"""

from collections.abc import Mapping
from typing import Any

from shared.protocol.messages import Usage

CONTINUED = "continued_tokens"


class ContinuedUsage:
    """``tokens``: of the answer so far as the engine was sent it. ``whole``: of the whole answer, when the
    engine was asked only what the prompt costs; then what it wrote itself does not count."""

    def __init__(self, tokens: int, *, whole: int | None = None) -> None:
        self._tokens = tokens
        self._whole = whole

    def count_end(self) -> None:
        """The engine did nothing but end the answer once more: what it counted for that, counts."""
        self._whole = None

    def chat(self, usage: Mapping[str, Any]) -> dict[str, Any]:
        """A usage object in the names of chat and completions."""
        return self._object(usage, "prompt_tokens", "completion_tokens")

    def responses(self, usage: Mapping[str, Any]) -> dict[str, Any]:
        """A usage object in the names of responses."""
        return self._object(usage, "input_tokens", "output_tokens")

    def messages(self, usage: Mapping[str, Any], first: Mapping[str, Any]) -> dict[str, Any]:
        """A usage object of Anthropic's. What the prompt was stands in the ``first`` one already, if its
        engine knew it by then; tokens from a cache are counted apart there."""
        out = dict(usage)
        out["output_tokens"] = self._after(count(out.get("output_tokens")), self._tokens)
        if "input_tokens" in out:
            out["input_tokens"] = count(first.get("input_tokens")) or max(
                0, count(out["input_tokens"]) - self._tokens
            )
        return out

    def add_up(self, usage: Usage) -> Usage:
        prompt, completion = self._divided(usage.prompt_tokens, usage.completion_tokens)
        return Usage(prompt, completion, min(usage.cached_tokens, prompt))

    def _divided(self, prompt: int, completion: int) -> tuple[int, int]:
        tokens = min(self._tokens, prompt)
        return prompt - tokens, self._after(completion, tokens)

    def _after(self, completion: int, tokens: int) -> int:
        return tokens + completion if self._whole is None else max(tokens, self._whole)

    def _object(self, usage: Mapping[str, Any], prompt_name: str, completion_name: str) -> dict[str, Any]:
        out = dict(usage)
        details_name = f"{prompt_name}_details"
        details = out.get(details_name)
        if isinstance(details, dict) and CONTINUED in details:
            details = dict(details)
            self._tokens = count(details.pop(CONTINUED), self._tokens)
            out[details_name] = details or None
        prompt, completion = count(out.get(prompt_name)), count(out.get(completion_name))
        if prompt_name in out or "total_tokens" in out:
            prompt, completion = self._divided(prompt, completion)
            out[prompt_name] = prompt
        else:
            completion = self._after(completion, self._tokens)
        out[completion_name] = completion
        if "total_tokens" in out:
            out["total_tokens"] = prompt + completion
        if isinstance(details, dict) and isinstance(details.get("cached_tokens"), int):
            out[details_name] = details | {"cached_tokens": min(details["cached_tokens"], prompt)}
        return out


def count(value: Any, default: int = 0) -> int:
    """A count of tokens, if ``value`` is one."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default
