"""The bodies an OpenAI-compatible engine sends: pure functions from a request to bytes."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import orjson

from tests.support.scripted_engine.planned import Planned
from tests.support.scripted_engine.script import embedding_of

Ids = Callable[[str], str]
"""Makes an id from a prefix; different at each call, as engines do."""


def usage_of(planned: Planned, choices: int = 1) -> dict[str, int]:
    """Usage in the names of chat and completions: of all choices together."""
    count = choices * len(planned.tokens)
    prompt_tokens = planned.prompt_tokens
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": count,
        "total_tokens": prompt_tokens + count,
    }


def other_choice(planned: Planned, index: int) -> Planned:
    """What the choice ``index`` of an answer with several says."""
    return planned if index == 0 else replace(planned, prompt=f"{planned.prompt}#{index}")


def finish_of(planned: Planned) -> str:
    return "stop" if planned.stopped else "length"


def choices_of(body: Mapping[str, Any]) -> int:
    """How many choices a request wants."""
    count = body.get("n")
    return count if isinstance(count, int) and count > 0 else 1


def _chat(body: Mapping[str, Any], planned: Planned, ids: Ids) -> dict[str, Any]:
    def choice(index: int) -> dict[str, Any]:
        message = {"role": "assistant", "content": "".join(other_choice(planned, index).tokens)}
        return {
            "index": index,
            "message": message | {"refusal": None},
            "finish_reason": finish_of(planned),
            "logprobs": None,
        }

    return {
        "id": ids("chatcmpl"),
        "object": "chat.completion",
        "created": int(time.time()),
        "model": body.get("model"),
        "choices": [choice(index) for index in range(choices_of(body))],
        "usage": usage_of(planned, choices_of(body)),
    }


def _completion(body: Mapping[str, Any], planned: Planned, ids: Ids) -> dict[str, Any]:
    text = "".join(planned.tokens)
    choice = {"index": 0, "text": text, "finish_reason": finish_of(planned), "logprobs": None}
    return {
        "id": ids("cmpl"),
        "object": "text_completion",
        "created": int(time.time()),
        "model": body.get("model"),
        "choices": [choice],
        "usage": usage_of(planned),
    }


def response_item(item_id: str, text: str | None) -> dict[str, Any]:
    """The one item of a response's output; still empty while ``text`` is None."""
    content = [] if text is None else [output_text(text)]
    status = "in_progress" if text is None else "completed"
    return {"type": "message", "id": item_id, "role": "assistant", "status": status, "content": content}


def output_text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": []}


def response_of(
    model: str, planned: Planned, response_id: str, item_id: str, created: int, *, over: bool
) -> dict[str, Any]:
    """The object of ``/v1/responses``; in progress unless it is ``over``."""
    status = ("completed" if planned.stopped else "incomplete") if over else "in_progress"
    usage = usage_of(planned)
    return {
        "id": response_id,
        "object": "response",
        "created_at": created,
        "model": model,
        "status": status,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "output": [response_item(item_id, "".join(planned.tokens))] if over else [],
        "parallel_tool_calls": False,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": usage["prompt_tokens"],
            "output_tokens": usage["completion_tokens"],
            "total_tokens": usage["total_tokens"],
        }
        if over
        else None,
    }


def _responses(body: Mapping[str, Any], planned: Planned, ids: Ids) -> dict[str, Any]:
    return response_of(
        str(body.get("model", "")), planned, ids("resp"), ids("msg"), int(time.time()), over=True
    )


def _embeddings(body: Mapping[str, Any], planned: Planned, ids: Ids) -> dict[str, Any]:
    texts = body.get("input", "")
    texts = texts if isinstance(texts, list) else [texts]
    data = [
        {"object": "embedding", "index": index, "embedding": embedding_of(str(text))}
        for index, text in enumerate(texts)
    ]
    usage = {"prompt_tokens": len(texts), "total_tokens": len(texts)}
    return {"object": "list", "model": body.get("model"), "data": data, "usage": usage}


def _rerank(body: Mapping[str, Any], planned: Planned, ids: Ids) -> dict[str, Any]:
    documents = list(body.get("documents", []))
    results = [{"index": index, "relevance_score": 1 / (1 + index)} for index in range(len(documents))]
    return {"id": ids("rerank"), "model": body.get("model"), "results": results}


def _messages(body: Mapping[str, Any], planned: Planned, ids: Ids) -> dict[str, Any]:
    return {
        "id": ids("msg"),
        "type": "message",
        "role": "assistant",
        "model": body.get("model"),
        "content": [{"type": "text", "text": "".join(planned.tokens)}],
        "stop_reason": "end_turn" if planned.stopped else "max_tokens",
        "stop_sequence": None,
        "usage": {"input_tokens": planned.prompt_tokens, "output_tokens": len(planned.tokens)},
    }


Answer = Callable[[Mapping[str, Any], Planned, Ids], dict[str, Any]]
UNARY: Mapping[str, Answer] = {
    "chat": _chat,
    "completions": _completion,
    "responses": _responses,
    "embeddings": _embeddings,
    "rerank": _rerank,
    "messages": _messages,
}
ROUTES: Mapping[str, str] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/responses": "responses",
    "/v1/embeddings": "embeddings",
    "/v1/rerank": "rerank",
    "/v1/messages": "messages",
}


def error_body(status: int, message: str) -> bytes:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return orjson.dumps(
        {"error": {"message": message, "type": kind, "param": None, "code": f"scripted_{status}"}}
    )


def models_body(models: tuple[str, ...], context_tokens: int | None, owner: str = "scripted") -> bytes:
    more = {} if context_tokens is None else {"created": 1, "max_model_len": context_tokens}
    data = [{"id": model, "object": "model", "owned_by": owner} | more for model in models]
    return orjson.dumps({"object": "list", "data": data})


def metrics_body(models: tuple[str, ...], running: int, waiting: int, kv_use: float) -> bytes:
    """Prometheus text in vLLM's names."""

    def lines() -> Iterator[str]:
        for name, value in (
            ("vllm:num_requests_running", float(running)),
            ("vllm:num_requests_waiting", float(waiting)),
            ("vllm:kv_cache_usage_perc", kv_use),
        ):
            yield f"# TYPE {name} gauge"
            yield from (f'{name}{{engine="0",model_name="{model}"}} {value}' for model in models)

    return ("\n".join(lines()) + "\n").encode()
