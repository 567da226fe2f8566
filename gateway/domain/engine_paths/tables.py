"""Paths by which engines are managed, by kind of engine. Pure data.

A rule is a path, with the methods it is about before it (``POST,DELETE /models``); without them it is about
all. In a segment ``*`` stands for any characters, ``/**`` at the end for everything below and the place
itself. A rule fits the end of a path, whatever stands before it: engines may be mounted under a prefix
(uvicorn's ``root_path``, ComfyUI's ``/api``).

"Managing" is what changes the engine for others (what is loaded, what runs, how), what reads others' requests
or the engine's secrets, and what makes the engine's host fetch or run something.
"""

from collections.abc import Mapping


def _writes(*paths: str) -> tuple[str, ...]:
    """Rules for the methods that change something."""
    return tuple(f"POST,PUT,PATCH,DELETE {path}" for path in paths)


EVERYWHERE = ("/admin/**", "/debug/**", "/shutdown", "/restart", "/reboot", "/terminate")
"""What no engine means for those who only ask it."""

_PROFILER = ("/start_profile*", "/stop_profile*")
_ADAPTERS = ("/load_lora_adapter*", "/unload_lora_adapter*")
_WEIGHTS = ("/*update_weight*", "/*weight_update*", "/*weights_*", "/*_weights", "/*weight_transfer*")

VLLM = (
    # docs/usage/security.md of vLLM, "Unprotected Endpoints"; is_sleeping, is_paused and the like only read
    *(_ADAPTERS + _PROFILER + _WEIGHTS),
    *("/sleep", "/wake_up", "/pause", "/resume"),
    *("/reset_*_cache", "/collective_rpc", "/scale_elastic_ep", "/abort_requests", "/server_info"),
)

SGLANG = (
    # python/sglang/srt/entrypoints/http_server.py: what takes its admin key, and what tells of that key
    *(_ADAPTERS + _PROFILER + _WEIGHTS),
    *("/load_oft_adapter*", "/unload_oft_adapter*", "/*gpu_delta*", "/*remote_instance*"),
    *("/flush_cache", "/*hicache*/**", "/*_external_corpus"),
    *("/release_memory_occupation", "/resume_memory_occupation"),
    *("/pause_generation", "/continue_generation", "/abort_request", "/slow_down", "/freeze_gc"),
    *("/configure_logging", "/set_trace_level", "/dumper/**", "/*_expert_distribution_record"),
    *("/set_internal_state", "/get_internal_state"),
    *("/get_server_info", "/get_server_args", "/server_info"),
)

LLAMA_CPP = (
    # tools/server/server.cpp; /slots shows what others ask, POST /slots/{id}?action= saves, loads and erases
    "/slots/**",
    *_writes("/props", "/lora-adapters", "/models"),
    *("/models/load", "/models/unload", "/models/sse", "/v1/streams"),
    *("/cors-proxy", "/tools"),
)

OLLAMA = (
    # server/routes.go
    *("/api/pull", "/api/push", "/api/create", "/api/copy", "/api/delete", "/api/blobs/**"),
    *("/api/signout", "/api/signin", "/api/me", "/api/user/**"),
)

LM_STUDIO = _writes("/api/v*/models/**", "/models/load", "/models/unload")

TGI = ()
"""It has nothing of the kind (router/src/server.rs)."""

KSERVE = (
    # the protocol's repository extension, and Triton's (docs/protocol); its shared memory is the host's
    *("/v2/repository/models/**", "/v2/repository/*/models/**"),
    *("/v2/systemsharedmemory/**", "/v2/cudasharedmemory/**"),
    *_writes("/v2/logging", "/trace/setting"),
    # TorchServe's management API, TensorFlow Serving's configuration
    *_writes("/models", "/set-default"),
    "PUT,PATCH,DELETE /models/**",
)

COMFYUI = (
    # server.py, app/user_manager.py, and the manager most have beside it, whose GET /manager/reboot restarts
    *_writes("/interrupt", "/queue", "/free", "/history"),
    *_writes("/settings/**", "/users", "/userdata/**"),
    *("/internal/**", "/manager/**", "/comfyui_manager/**"),
    *("/customnode/**", "/snapshot/**", "/externalmodel/**"),
)

OTHERS = (
    # lmdeploy, tabbyAPI, Aphrodite, text-generation-webui, KoboldCpp, LocalAI, Xinference, whisper.cpp,
    # Stable Diffusion web UI, Speaches, Spring, Ray Serve
    *("/wakeup", "/distserve/**"),
    *_writes("/model/load", "/model/unload", "/lora/load", "/lora/unload", "/soft_prompt/**"),
    *_writes("/template/switch", "/template/unload", "/override/switch", "/v1/download"),
    *_writes("/v1/internal/**", "/extra/abort"),
    *_writes("/models/apply", "/models/delete/**", "/models/galleries/**"),
    *_writes("/models/load", "/models/unload", "/models/download/**"),
    *_writes("/v1/models", "/backend/**"),
    "PUT,PATCH,DELETE /v1/models/**",
    *_writes("/load", "/unload", "/reload", "/reload_config"),
    *_writes("/sdapi/v1/options", "/sdapi/v1/*-checkpoint", "/sdapi/v1/refresh-*"),
    *_writes("/sdapi/v1/server-*", "/sdapi/v1/interrupt", "/sdapi/v1/skip"),
    "/actuator/**",
    *_writes("/serve/applications", "/api/jobs/**", "/config", "/configure"),
)

TABLES: Mapping[str, tuple[str, ...]] = {
    "vllm": VLLM,
    "sglang": SGLANG,
    "tgi": TGI,
    "llama.cpp": LLAMA_CPP,
    "ollama": OLLAMA,
    "lmstudio": LM_STUDIO,
    "kserve": KSERVE,
    "tensorflow": KSERVE,
    "torchserve": KSERVE,
    "comfyui": COMFYUI,
    "trunkline": (),
}
"""Kind of engine that agents tell → rules."""
