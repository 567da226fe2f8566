"""The kinds of engine that are understood without configuration, and what is particular to each. Pure data.

A kind only fills in what an engine does not say of itself; nothing here is needed for a request to reach it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from agent.engines.http.capabilities import (
    ModelDescription,
    facts_of_kserve,
    facts_of_llama_cpp,
    facts_of_ollama,
    facts_of_sglang,
    facts_of_tgi,
)
from shared.protocol.messages import CONTINUATION_WAYS
from shared.protocol.routes import CONTINUED_ROUTES, ROUTES, Route, offered


class WhileBusy(Enum):
    """What an engine does with a question (models, health, load) that comes while it works on requests."""

    ANSWERS = auto()
    """It answers beside them: its HTTP server is not what computes."""
    UNKNOWN = auto()
    """It may answer late, and its answer says little: it is not asked."""
    INTERRUPTS = auto()
    """It ends the running stream for it: it is not asked, and requests wait until a question is answered."""


@dataclass(frozen=True, slots=True)
class EngineKind:
    """``slots`` is how many requests it may have when nothing better is known, with the reason beside it."""

    name: str
    slots: int
    routes: tuple[str, ...]
    owners: tuple[str, ...] = ()
    """What it writes as ``owned_by`` in ``/v1/models``."""
    facts_path: str | None = None
    """Where it tells how many requests it takes at once."""
    facts_key: str = ""
    """The number's name there."""
    about_path: str | None = None
    """Where it says more of its one model than at ``facts_path``."""
    read_about: Callable[[Mapping[str, Any]], ModelDescription] | None = None
    """Reads what it says of its one model at these two paths, taken together."""
    openapi_path: str = "/openapi.json"
    """Where it describes its paths, if it does."""
    models_path: str | None = None
    """Where it says more of its models than in ``/v1/models``, in one list."""
    show_path: str | None = None
    """Where it says more of one model: of the one written for ``{model}``, else of the one a POST names."""
    read_shown: Callable[[Any], ModelDescription] | None = None
    """Reads what it says there."""
    loaded_path: str | None = None
    """Where it lists the models that are loaded, with the context that each was given."""
    stateful: bool = False
    """Whether requests for its own paths leave state behind that later requests refer to."""
    continues: Mapping[str, str] = field(default_factory=dict)
    """Route → how it is asked to go on with an answer that another engine began (PROTOCOL §4.7); only what
    its documentation or source says, as an engine that begins anew instead would spoil the answer."""
    while_busy: WhileBusy = WhileBusy.ANSWERS


def _routes(*routes: Route) -> tuple[str, ...]:
    """``routes``, and the paths that every kind has of its own."""
    return tuple(route.value for route in (*routes, Route.ANY))


_OPENAI = (Route.CHAT, Route.COMPLETIONS, Route.RESPONSES, Route.EMBEDDINGS)
_SCORING = (Route.RERANK, Route.SCORE, Route.CLASSIFY)
_FINAL_MESSAGE = {Route.CHAT.value: "final_message", Route.COMPLETIONS.value: "prompt"}
_PREFILL = {Route.CHAT.value: "prefill", Route.COMPLETIONS.value: "prompt"}

GENERIC = EngineKind("generic", 8, ROUTES, stateful=True, while_busy=WhileBusy.UNKNOWN)
"""Eight: enough to keep a batching engine busy, few enough not to pile up before one that has no batch.
Every route is offered of it, and what it turns out not to have is taken back. Stateful, because nobody knows
better: ComfyUI, for one, tells results only where the work was done."""

BUILT_IN = EngineKind(
    "trunkline",
    8,
    _routes(Route.CHAT, Route.COMPLETIONS),
    ("trunkline",),
    continues=_FINAL_MESSAGE,
)
"""The built-in engine; it reports everything else about itself in ``/v1/models``."""

PYTHON = EngineKind("python", 8, _routes(), ("trunkline-python",))
"""A model of the operator's own (:mod:`agent.serve`); it reports its slots and the paths that it has."""

TELL_ROUTES = (BUILT_IN, PYTHON)
"""Kinds that say in ``/v1/models`` which routes they have."""

VLLM = EngineKind(
    "vllm",
    256,  # the default of max_num_seqs, which it does not tell; what is too much shows as requests waiting
    _routes(*_OPENAI, *_SCORING, Route.POOLING, Route.TOKENIZE, Route.AUDIO, Route.MESSAGES),
    ("vllm",),
    # continue_final_message: vllm-project/vllm#8942. Not messages: its Anthropic adapter makes a chat request
    # of them without that member (vllm/entrypoints/anthropic/serving.py, _build_base_request).
    continues=_FINAL_MESSAGE,
)

SGLANG = EngineKind(
    "sglang",
    64,  # it tells max_running_requests only when told one; the rest shows as requests waiting
    _routes(*_OPENAI, *_SCORING, Route.TOKENIZE, Route.MESSAGES),
    ("sglang",),
    facts_path="/get_server_info",
    facts_key="max_running_requests",
    about_path="/get_model_info",
    read_about=facts_of_sglang,
    # continue_final_message: sgl-project/sglang#4226. Not messages, as with vLLM
    # (sglang/srt/entrypoints/anthropic/request_conversion.py).
    continues=_FINAL_MESSAGE,
)

TGI = EngineKind(
    "tgi",
    128,  # the default of max_concurrent_requests, above which it answers 429
    _routes(Route.CHAT, Route.COMPLETIONS, Route.TOKENIZE, Route.GENERATE),
    facts_path="/info",
    facts_key="max_concurrent_requests",
    read_about=facts_of_tgi,
    openapi_path="/api-doc/openapi.json",
    # huggingface/text-generation-inference#2733; since then its router goes on with a final message of the
    # assistant unasked, without the white space at its end (router/src/infer/chat_template.rs).
    continues=_PREFILL,
)

LLAMA_CPP = EngineKind(
    "llama.cpp",
    4,  # the default of --parallel in its server since 2025; 1 before
    _routes(*_OPENAI, Route.RERANK, Route.TOKENIZE, Route.AUDIO, Route.MESSAGES),
    ("llamacpp",),
    facts_path="/props",
    facts_key="total_slots",
    read_about=facts_of_llama_cpp,
    # Unless started with --no-prefill-assistant: ggml-org/llama.cpp#13174, #13608. /v1/messages is turned
    # into the same chat request first: #17570.
    continues={**_PREFILL, Route.MESSAGES.value: "prefill"},
)

LLAMA_CPP_PYTHON = EngineKind(
    "llama-cpp-python",
    1,  # there is one model behind one lock; by its default (interrupt_requests) a second call ends the first
    _routes(Route.CHAT, Route.COMPLETIONS, Route.EMBEDDINGS),
    ("me",),
    # create_completion goes on from the prompt as it is; what its chat formats do with a final message of the
    # assistant depends on the format (llama_cpp/llama_chat_format.py).
    continues={Route.COMPLETIONS.value: "prompt"},
    # Every route that uses the model, /v1/models among them, waits for its lock, and a stream ends when it
    # sees somebody wait (llama_cpp/server/app.py, get_llama_proxy and get_event_publisher).
    while_busy=WhileBusy.INTERRUPTS,
)

TRANSFORMERS = EngineKind(
    "transformers",
    1,  # it generates one answer after the other, unless it was started with --continuous-batching
    _routes(Route.CHAT, Route.COMPLETIONS, Route.RESPONSES, Route.AUDIO),
    # Nothing: it always adds a generation prompt (transformers/cli/serving/chat_completion.py).
    while_busy=WhileBusy.UNKNOWN,
)

OLLAMA = EngineKind(
    "ollama",
    4,  # OLLAMA_NUM_PARALLEL is 1 to 4 by the memory there is, and not told; it queues the others
    _routes(*_OPENAI, Route.AUDIO, Route.IMAGES, Route.MESSAGES, Route.OLLAMA),
    ("library",),
    show_path="/api/show",
    read_shown=facts_of_ollama,
    loaded_path="/api/ps",
    # Nothing: whether it goes on with a final message of the assistant depends on the model's template
    # (ollama/ollama#6778, #5775), and its /v1/completions puts the prompt into that template, too
    # (openai/openai.go, FromCompleteRequest).
)

LM_STUDIO = EngineKind(
    "lmstudio",
    4,  # its default of requests at once per model
    _routes(*_OPENAI, Route.MESSAGES),
    ("organization_owner",),
    models_path="/api/v1/models",  # since 0.4.0
    # Nothing: its documentation does not say.
)

KSERVE = EngineKind(
    "kserve", 8, _routes(Route.INFER), show_path="/v2/models/{model}", read_shown=facts_of_kserve
)
"""Triton, MLServer and other servers of KServe's Open Inference Protocol; what they take at once depends on
the model, and they queue the others. Known by the operator's word, as they have no ``/v1/models``."""

TENSORFLOW = EngineKind("tensorflow", 8, _routes(Route.PREDICT))
"""TensorFlow Serving. Known by the operator's word, as it lists no models."""

TORCHSERVE = EngineKind("torchserve", 8, _routes(Route.PREDICTIONS, Route.PREDICT))
"""It also speaks KServe's first protocol (``/v1/models/{model}:predict``). Known by the operator's word, as
it lists its models at another port."""

COMFYUI = EngineKind("comfyui", 1, (Route.WORKFLOWS.value,), stateful=True)
"""One prompt at a time is what it runs; more only stand in its queue. Known by the operator's word."""

COMFYUI_PATHS = EngineKind("comfyui", 64, (Route.ANY.value,), stateful=True)
"""Its own paths but for prompts: its server answers them beside what it computes."""

KINDS = (BUILT_IN, PYTHON, VLLM, SGLANG, TGI, LLAMA_CPP, LLAMA_CPP_PYTHON, TRANSFORMERS, OLLAMA, LM_STUDIO)

USUAL_PORTS: Mapping[int, EngineKind] = {
    8000: VLLM,
    30000: SGLANG,
    8080: LLAMA_CPP,
    3000: TGI,
    11434: OLLAMA,
    1234: LM_STUDIO,
    8188: COMFYUI,
}
"""Each kind's default port (TGI also uses llama.cpp's). Its answers show which kind it really is."""


def kind_of(owner: str, info: Any) -> EngineKind:
    """The kind of engine that writes ``owner`` in ``/v1/models`` and ``info`` at ``/info`` (or None)."""
    for kind in KINDS:
        if owner in kind.owners:
            return kind
    if isinstance(info, dict) and "max_concurrent_requests" in info and "model_id" in info:
        return TGI
    return GENERIC


_OF_TRANSFORMERS = frozenset({"/load_model", "/reset", "/v1/chat/completions"})
"""No other engine is known to have all of these. The owners of its models are their authors."""


def kind_of_paths(openapi: Any) -> EngineKind:
    """The kind of engine whose ``/openapi.json`` (or None) this is."""
    paths = openapi.get("paths") if isinstance(openapi, dict) else None
    return TRANSFORMERS if isinstance(paths, dict) and paths.keys() >= _OF_TRANSFORMERS else GENERIC


def slots_from(facts: Any, kind: EngineKind) -> int | None:
    """How many requests at once an engine says it takes, or None when it does not say."""
    value = facts.get(kind.facts_key) if isinstance(facts, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= 100_000 else None


def routes_from(description: Any) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """The routes of an engine with this OpenAPI document and what it lacks of them
    (:func:`shared.protocol.routes.offered`); None when it is none, or names no path that is known."""
    paths = description.get("paths") if isinstance(description, dict) else None
    if not isinstance(paths, dict):
        return None
    return offered(path for path, item in paths.items() if isinstance(item, dict) and "post" in item)


def check_continues(ways: Mapping[str, str]) -> Mapping[str, str]:
    """``ways``, route → way, if it can be. Raises ValueError, saying what is wrong."""
    for route, way in ways.items():
        if route not in CONTINUED_ROUTES:
            raise ValueError(
                f"{route!r} is no route whose answers go on; they are {', '.join(CONTINUED_ROUTES)}"
            )
        fitting = CONTINUATION_WAYS - {"prompt"} if route != "completions" else {"prompt"}
        if way not in fitting:
            raise ValueError(f"{route} = {way!r}: must be {' or '.join(sorted(fitting))}")
    return ways
