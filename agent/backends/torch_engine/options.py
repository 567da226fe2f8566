"""How an engine process is started: its options, the same on both sides of the command line."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from agent.backends.torch_engine.demo import DEMO_MODEL_DIR, DEMO_MODEL_NAME

DEMO = "demo"
"""As a model: the demo model of the package."""

DEVICES = ("auto", "cpu", "cuda")
DTYPES = ("auto", "float32", "bfloat16", "float16")

CPU_SLOTS = 8
"""On a CPU a step's time grows with the requests in it, so more slots only make each one slower."""
CUDA_SLOTS = 64
"""On a GPU decoding is bound by reading the weights, which one step does for all of its requests."""

EXIT_UNUSABLE = 3
"""Exit status when the model cannot be served at all, so that starting again cannot help."""

PACKAGES = ("accelerate", "jinja2", "psutil", "safetensors", "tokenizers", "torch", "transformers")
NOT_INSTALLED = "the built-in engine needs PyTorch and transformers: pip install 'trunkline[torch]'"

KEY_VARIABLE = "TRUNKLINE_ENGINE_KEY"
"""Environment variable with the bearer key that requests must carry; needed on TCP, as any local user
connects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """One model to serve. ``socket`` None: TCP on loopback at ``port`` (0: any free one)."""

    model: Path
    name: str
    socket: Path | None = None
    port: int = 0
    device: str = "auto"
    dtype: str = "auto"
    slots: int | None = None
    """Requests computed at once; None: by device."""
    queue: int | None = None
    """Requests that may wait for a slot before one is refused with 429; None: as many as slots."""
    max_context: int | None = None
    """Most tokens of prompt and answer together; None: what the model was made for."""
    threads: int | None = None
    """Threads of one computation on a CPU; None: by the number of CPUs."""
    memory_bytes: int | None = None
    """What weights and KV cache may take together; None: what is free."""
    exit_with_parent: bool = False
    """End when standard input ends: whoever started the engine is gone."""

    def __post_init__(self) -> None:
        for name, least in (
            ("slots", 1),
            ("queue", 0),
            ("max_context", 16),
            ("threads", 1),
            ("memory_bytes", 1),
        ):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} must be at least {least}, not {value}")
        if self.device not in DEVICES:
            raise ValueError(f"device must be one of {', '.join(DEVICES)}, not {self.device!r}")
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, not {self.dtype!r}")

    def arguments(self) -> list[str]:
        """The command line that :func:`parse` turns into these options again."""
        words = [
            "--model",
            str(self.model),
            "--name",
            self.name,
            "--device",
            self.device,
            "--dtype",
            self.dtype,
        ]
        if self.socket is not None:
            words += ["--socket", str(self.socket)]
        else:
            words += ["--port", str(self.port)]
        for name in ("slots", "queue", "max_context", "threads", "memory_bytes"):
            value = getattr(self, name)
            if value is not None:
                words += [f"--{name.replace('_', '-')}", str(value)]
        return [*words, "--exit-with-parent"] if self.exit_with_parent else words


def is_installed() -> bool:
    """Whether what the engine computes with is there; nothing of it is imported."""
    return all(find_spec(package) is not None for package in PACKAGES)


def locate(model: str | Path) -> tuple[Path, str]:
    """Directory and default name of a model given as ``demo`` or as a directory."""
    if str(model) == DEMO:
        return DEMO_MODEL_DIR, DEMO_MODEL_NAME
    directory = Path(model).expanduser().absolute()
    return directory, directory.name


def parse(arguments: Sequence[str]) -> EngineOptions:
    """Read the command line; a wrong one ends the program with status 2 and its usage."""
    parser = argparse.ArgumentParser(
        prog="python -m agent.backends.torch_engine",
        description="Serve one local Hugging Face model with the OpenAI HTTP surface.",
        epilog="example: python -m agent.backends.torch_engine --model demo --socket /tmp/engine.sock",
    )
    parser.add_argument("--model", required=True, metavar="DIR|demo", help="a local model directory, or demo")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--socket", type=Path, help="Unix socket to listen on")
    where.add_argument("--port", type=int, help=f"TCP port on 127.0.0.1 (0: any); needs ${KEY_VARIABLE}")
    parser.add_argument("--name", help="model name for clients (default: the directory's)")
    parser.add_argument("--device", choices=DEVICES, default="auto")
    parser.add_argument("--dtype", choices=DTYPES, default="auto")
    parser.add_argument("--slots", type=int, help="requests computed at once")
    parser.add_argument("--queue", type=int, help="requests that may wait for a slot")
    parser.add_argument("--max-context", type=int, help="most tokens of prompt and answer together")
    parser.add_argument("--threads", type=int, help="threads of one computation on a CPU")
    parser.add_argument("--memory-bytes", type=int, help="most memory of weights and KV cache together")
    parser.add_argument("--exit-with-parent", action="store_true", help="end when standard input ends")
    found = vars(parser.parse_args(arguments))
    directory, name = locate(found.pop("model"))
    found["name"] = found["name"] or name
    found["port"] = found["port"] or 0
    try:
        return EngineOptions(model=directory, **found)
    except ValueError as error:
        parser.error(str(error))
