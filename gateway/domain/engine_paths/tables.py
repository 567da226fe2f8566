"""Paths by which engines are managed, by kind of engine. Pure data.

A rule is a path, with the methods it is about before it (``POST,DELETE /models``); without them it is about
all. In a segment ``*`` stands for any characters, ``/**`` at the end for everything below and the place
itself. A rule fits the end of a path, whatever stands before it: engines may be mounted under a prefix
(uvicorn's ``root_path``, ComfyUI's ``/api``).

"Managing" is what changes the engine for others (what is loaded, what runs, how), what reads others' requests
or the engine's secrets, and what makes the engine's host fetch or run something.
"""

from collections.abc import Mapping

WRITE = "POST,PUT,PATCH,DELETE"

EVERYWHERE = (
    "/admin/**",
    "/debug/**",
    "/shutdown",
    "/restart",
    "/reboot",
    "/terminate",
)
"""What no engine means for those who only ask it."""

_PROFILER = ("/start_profile*", "/stop_profile*")
_ADAPTERS = ("/load_lora_adapter*", "/unload_lora_adapter*")
_WEIGHTS = ("/*update_weight*", "/*weight_update*", "/*weights_*", "/*_weights", "/*weight_transfer*")

VLLM = (
    # docs/usage/security.md of vLLM, "Unprotected Endpoints"; is_sleeping, is_paused and the like only read
    *(_ADAPTERS + _PROFILER + _WEIGHTS),
    "/sleep",
    "/wake_up",
    "/pause",
    "/resume",
    "/reset_*_cache",
    "/collective_rpc",
    "/scale_elastic_ep",
    "/abort_requests",
    "/server_info",
)

SGLANG = (
    # python/sglang/srt/entrypoints/http_server.py: what takes its admin key, and what tells of that key
    *(_ADAPTERS + _PROFILER + _WEIGHTS),
    "/load_oft_adapter*",
    "/unload_oft_adapter*",
    "/*gpu_delta*",
    "/flush_cache",
    "/release_memory_occupation",
    "/resume_memory_occupation",
    "/pause_generation",
    "/continue_generation",
    "/abort_request",
    "/slow_down",
    "/freeze_gc",
    "/configure_logging",
    "/set_internal_state",
    "/get_internal_state",
    "/set_trace_level",
    "/get_server_info",
    "/get_server_args",
    "/server_info",
    "/*_expert_distribution_record",
    "/*hicache*/**",
    "/dumper/**",
    "/*_external_corpus",
    "/*remote_instance*",
)

LLAMA_CPP = (
    # tools/server/server.cpp; /slots shows what others ask, POST /slots/{id}?action= saves, loads and erases
    "/slots/**",
    f"{WRITE} /props",
    f"{WRITE} /lora-adapters",
    f"{WRITE} /models",
    "/models/load",
    "/models/unload",
    "/models/sse",
    "/v1/streams",
    "/cors-proxy",
    "/tools",
)

OLLAMA = (
    # server/routes.go
    "/api/pull",
    "/api/push",
    "/api/create",
    "/api/copy",
    "/api/delete",
    "/api/blobs/**",
    "/api/signout",
    "/api/signin",
    "/api/me",
    "/api/user/**",
)

LM_STUDIO = (f"{WRITE} /api/v*/models/**", f"{WRITE} /models/load", f"{WRITE} /models/unload")

TGI = ()
"""It has nothing of the kind (router/src/server.rs)."""

KSERVE = (
    # the protocol's repository extension, and Triton's (docs/protocol); its shared memory is the host's
    "/v2/repository/models/**",
    "/v2/repository/*/models/**",
    "/v2/systemsharedmemory/**",
    "/v2/cudasharedmemory/**",
    f"{WRITE} /v2/logging",
    f"{WRITE} /trace/setting",
    # TorchServe's management API, TensorFlow Serving's configuration
    f"{WRITE} /models",
    "PUT,PATCH,DELETE /models/**",
    f"{WRITE} /set-default",
)

COMFYUI = (
    # server.py, app/user_manager.py, and the manager most have beside it, whose GET /manager/reboot restarts
    f"{WRITE} /interrupt",
    f"{WRITE} /queue",
    f"{WRITE} /free",
    f"{WRITE} /history",
    f"{WRITE} /settings/**",
    f"{WRITE} /users",
    f"{WRITE} /userdata/**",
    "/internal/**",
    "/manager/**",
    "/comfyui_manager/**",
    "/customnode/**",
    "/snapshot/**",
    "/externalmodel/**",
)

OTHERS = (
    # lmdeploy, tabbyAPI, Aphrodite, text-generation-webui, KoboldCpp, LocalAI, Xinference, whisper.cpp,
    # Stable Diffusion web UI, Speaches, Spring, Ray Serve
    "/wakeup",
    "/distserve/**",
    f"{WRITE} /model/load",
    f"{WRITE} /model/unload",
    f"{WRITE} /lora/load",
    f"{WRITE} /lora/unload",
    f"{WRITE} /soft_prompt/**",
    f"{WRITE} /template/switch",
    f"{WRITE} /template/unload",
    f"{WRITE} /override/switch",
    f"{WRITE} /v1/download",
    f"{WRITE} /v1/internal/**",
    f"{WRITE} /extra/abort",
    f"{WRITE} /models/apply",
    f"{WRITE} /models/delete/**",
    f"{WRITE} /models/galleries/**",
    f"{WRITE} /models/load",
    f"{WRITE} /models/unload",
    f"{WRITE} /models/download/**",
    f"{WRITE} /v1/models",
    "PUT,PATCH,DELETE /v1/models/**",
    f"{WRITE} /backend/**",
    f"{WRITE} /load",
    f"{WRITE} /unload",
    f"{WRITE} /reload",
    f"{WRITE} /reload_config",
    f"{WRITE} /sdapi/v1/options",
    f"{WRITE} /sdapi/v1/*-checkpoint",
    f"{WRITE} /sdapi/v1/refresh-*",
    f"{WRITE} /sdapi/v1/server-*",
    f"{WRITE} /sdapi/v1/interrupt",
    f"{WRITE} /sdapi/v1/skip",
    "/actuator/**",
    f"{WRITE} /serve/applications",
    f"{WRITE} /api/jobs/**",
    f"{WRITE} /config",
    f"{WRITE} /configure",
)

TABLES: Mapping[str, tuple[str, ...]] = {
    "vllm": VLLM,
    "sglang": SGLANG,
    "tgi": TGI,
    "llama.cpp": LLAMA_CPP,
    "ollama": OLLAMA,
    "lmstudio": LM_STUDIO,
    "kserve": KSERVE,
    "comfyui": COMFYUI,
    "trunkline": (),
}
"""Kind of engine that agents tell → rules."""
