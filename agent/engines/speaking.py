"""Which backend serves an engine with a URL, by the protocol that the engine speaks."""

from collections.abc import Callable, Mapping

from agent.engines.backend import Backend
from agent.engines.comfyui.backend import ComfyUIBackend
from agent.engines.http.kserve import KServeBackend
from agent.engines.http.model_servers import TensorFlowServingBackend, TorchServeBackend
from agent.engines.http.openai import OpenAIHTTPBackend
from agent.engines.settings import EngineSettings

BACKENDS: Mapping[str, Callable[[EngineSettings], Backend]] = {
    "openai": OpenAIHTTPBackend,
    "kserve": KServeBackend,
    "tensorflow": TensorFlowServingBackend,
    "torchserve": TorchServeBackend,
    "comfyui": ComfyUIBackend,
}
"""Protocol, as the agent's settings name it → what makes its backend."""
