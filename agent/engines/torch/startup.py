"""What an engine process and its agent agree on: the command line, and the lines on standard output.

The process writes a line of JSON for each step of loading (:class:`LoadProgress`) and one when it is ready
(:class:`EngineReady`). Nothing here imports torch.
"""

import argparse
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson
from pydantic import TypeAdapter

from agent.engines.torch.demo import DEMO_MODEL_DIR, DEMO_MODEL_NAME

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

IMPORTING = "importing PyTorch"
READING = "reading the weights"
PREPARING = "preparing to compute"

EVERY_S = 0.5
"""How often the share of the weights that are read is reported."""


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
        words = []
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None or value is False or (field.name == "port" and self.socket is not None):
                continue
            words += [f"--{field.name.replace('_', '-')}", *([] if value is True else [str(value)])]
        return words


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
        prog="python -m agent.engines.torch",
        description="Serve one local Hugging Face model with the OpenAI HTTP surface.",
        epilog="example: python -m agent.engines.torch --model demo --socket /tmp/engine.sock",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What does not change while the engine lives; the ready line carries it to the agent."""

    model: str
    routes: tuple[str, ...]
    slots: int
    queue: int
    context_tokens: int
    device: str
    created: int
    """Seconds since 1970."""


@dataclass(frozen=True, slots=True)
class EngineReady:
    """The line that says that the engine serves. ``port`` None: it listens on its Unix socket."""

    ready: EngineFacts
    port: int | None

    def line(self) -> bytes:
        return orjson.dumps(self) + b"\n"


_READY = TypeAdapter(EngineReady)


def read_ready(line: bytes) -> EngineReady:
    """Raises ValueError for what is no ready line."""
    try:
        return _READY.validate_json(line)
    except ValueError as error:
        raise ValueError(
            f"the engine process said {line[:100]!r} where it should have said it is ready"
        ) from error


class LoadProgress:
    """Reports how far loading is. ``write`` takes each line."""

    def __init__(self, write: Callable[[bytes], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._write = write
        self._clock = clock
        self._reported_s = 0.0

    def report(self, step: str, share: float | None = None) -> None:
        """Loading is at ``step`` now, of which ``share`` (0 to 1) is done."""
        self._reported_s = self._clock()
        report = {"loading": {"step": step, "progress": None if share is None else round(share, 3)}}
        self._write(orjson.dumps(report) + b"\n")

    def counted(self, items: Iterable[Any], total: int | None) -> Iterator[Any]:
        """``items``; meanwhile the share of ``total`` that was taken is reported every :data:`EVERY_S`."""
        for done, item in enumerate(items):
            if total and self._clock() - self._reported_s >= EVERY_S:
                self.report(READING, done / total)
            yield item

    def bar(self, factory: Callable[..., Any], arguments: tuple[Any, ...], settings: dict[str, Any]) -> Any:
        """Stands in for the progress bars of transformers (``transformers.utils.logging.set_tqdm_hook``)."""
        items = arguments[0] if arguments else settings.get("iterable")
        if items is None:
            return factory(*arguments, **settings)
        total = settings.get("total") or (len(items) if isinstance(items, Sized) else None)
        return self.counted(items, total)


def read_progress(line: bytes) -> tuple[float | None, str] | None:
    """The share of the weights that are read, and the step; None for another line."""
    try:
        told = orjson.loads(line)["loading"]
        share = told["progress"]
        return (None if share is None else min(1.0, max(0.0, float(share)))), str(told["step"])[:100]
    except (KeyError, TypeError, ValueError):
        return None
