"""The bodies an OpenAI-compatible engine sends: pure functions from a request to bytes."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import orjson

from tests.support.scripted_engine.script import Script, embedding_of, prompt_of, tokens_of


def answer_length(body: Mapping[str, Any], script: Script) -> int:
    for key in ("max_completion_tokens", "max_tokens", "max_output_tokens"):
        if isinstance(body.get(key), int):
            return int(body[key])
    return script.tokens


def usage_of(body: Mapping[str, Any], completion_tokens: int) -> dict[str, int]:
    prompt_tokens = max(1, len(prompt_of(body).split()))
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def _chat(body: Mapping[str, Any], script: Script, request_id: str) -> dict[str, Any]:
    tokens = tokens_of(prompt_of(body), answer_length(body, script), script.pad_bytes)
    message = {"role": "assistant", "content": "".join(tokens), "refusal": None}
    return {
        "id": request_id,
        "object": "chat.completion",
        "created": 1,
        "model": body.get("model"),
        "choices": [{"index": 0, "message": message, "finish_reason": "length", "logprobs": None}],
        "usage": usage_of(body, len(tokens)),
    }


def _completion(body: Mapping[str, Any], script: Script, request_id: str) -> dict[str, Any]:
    tokens = tokens_of(prompt_of(body), answer_length(body, script), script.pad_bytes)
    return {
        "id": request_id,
        "object": "text_completion",
        "created": 1,
        "model": body.get("model"),
        "choices": [{"index": 0, "text": "".join(tokens), "finish_reason": "length", "logprobs": None}],
        "usage": usage_of(body, len(tokens)),
    }


def response_of(model: str, tokens: list[str], request_id: str) -> dict[str, Any]:
    """The object of ``/v1/responses``; in progress while there are no tokens."""
    text = {"type": "output_text", "text": "".join(tokens), "annotations": []}
    item = {"type": "message", "id": "i", "role": "assistant", "status": "completed", "content": [text]}
    return {
        "id": request_id,
        "object": "response",
        "created_at": 1,
        "model": model,
        "status": "completed" if tokens else "in_progress",
        "output": [item] if tokens else [],
        "parallel_tool_calls": False,
        "tool_choice": "auto",
        "tools": [],
        "usage": {"input_tokens": 1, "output_tokens": len(tokens), "total_tokens": 1 + len(tokens)},
    }


def _responses(body: Mapping[str, Any], script: Script, request_id: str) -> dict[str, Any]:
    tokens = tokens_of(prompt_of(body), answer_length(body, script), script.pad_bytes)
    return response_of(str(body.get("model", "")), tokens, request_id)


def _embeddings(body: Mapping[str, Any], script: Script, request_id: str) -> dict[str, Any]:
    texts = body.get("input", "")
    texts = texts if isinstance(texts, list) else [texts]
    data = [
        {"object": "embedding", "index": index, "embedding": embedding_of(str(text))}
        for index, text in enumerate(texts)
    ]
    usage = {"prompt_tokens": len(texts), "total_tokens": len(texts)}
    return {"object": "list", "model": body.get("model"), "data": data, "usage": usage}


def _rerank(body: Mapping[str, Any], script: Script, request_id: str) -> dict[str, Any]:
    documents = list(body.get("documents", []))
    results = [{"index": index, "relevance_score": 1 / (1 + index)} for index in range(len(documents))]
    return {"id": request_id, "model": body.get("model"), "results": results}


def _messages(body: Mapping[str, Any], script: Script, request_id: str) -> dict[str, Any]:
    tokens = tokens_of(prompt_of(body), answer_length(body, script), script.pad_bytes)
    return {
        "id": request_id,
        "type": "message",
        "role": "assistant",
        "model": body.get("model"),
        "content": [{"type": "text", "text": "".join(tokens)}],
        "stop_reason": "max_tokens",
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": len(tokens)},
    }


Answer = Callable[[Mapping[str, Any], Script, str], dict[str, Any]]
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


def models_body(models: tuple[str, ...], context_tokens: int) -> bytes:
    data = [
        {
            "id": model,
            "object": "model",
            "created": 1,
            "owned_by": "scripted",
            "max_model_len": context_tokens,
        }
        for model in models
    ]
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
