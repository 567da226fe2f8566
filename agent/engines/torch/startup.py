"""What an engine process and its agent agree on: the command line, and the lines on standard output.

The process writes a line of JSON for each step of loading (:class:`LoadProgress`) and one when it is ready
(:class:`EngineFacts`). Nothing here imports torch.
"""

import argparse
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import orjson
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from agent.engines.torch.demo import DEMO_MODEL_DIR, DEMO_MODEL_NAME

DEMO = "demo"
"""As a model: the demo model of the package."""

CPU_SLOTS = 8
"""On a CPU a step's time grows with the requests in it, so more slots only make each one slower."""
CUDA_SLOTS = 64
"""On a GPU decoding is bound by reading the weights, which one step does for all of its requests."""

PACKAGES = ("accelerate", "jinja2", "psutil", "safetensors", "tokenizers", "torch", "transformers")
NOT_INSTALLED = "the built-in engine needs PyTorch and transformers: pip install 'trunkline[torch]'"

IMPORTING = "importing PyTorch"
READING = "reading the weights"
PREPARING = "preparing to compute"

EVERY_S = 0.5
"""How often the share of the weights that are read is reported."""


class EngineOptions(BaseModel):
    """One model to serve. What is written below a field is its help on the command line as well."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    model: Path
    """A local Hugging Face model directory, or "demo"."""
    name: str
    """The model's name for clients; by default the directory's."""
    socket: Path | None = None
    """Unix socket to listen on; without it the engine listens on TCP."""
    port: int = 0
    """TCP port on 127.0.0.1, 0 for any free one; needs a key in $TRUNKLINE_ENGINE_KEY."""
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:[0-9]{1,3})?)$")] = "auto"
    """Where to compute: auto, cpu, cuda, or one of several GPUs: cuda:1."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """What to compute in: auto, float32, bfloat16 or float16."""
    slots: Annotated[int, Field(ge=1)] | None = None
    """Requests computed at once; by default as the device suggests."""
    queue: Annotated[int, Field(ge=0)] | None = None
    """Requests that may wait for a slot before one is refused with 429; by default as many as slots."""
    max_context: Annotated[int, Field(ge=16)] | None = None
    """Most tokens of prompt and answer together; by default what the model was made for."""
    threads: Annotated[int, Field(ge=1)] | None = None
    """Threads of one computation on a CPU; by default as the number of CPUs suggests."""
    memory_bytes: Annotated[int, Field(ge=1)] | None = None
    """What weights and KV cache may take together; by default what is free."""
    exit_with_parent: bool = False
    """End when standard input ends: whoever started the engine is gone."""

    @classmethod
    def of(cls, **options: Any) -> Self:
        """Raises ValueError, which says in one line what can never work."""
        try:
            return cls(**options)
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"{first['loc'][0]}: {first['msg']}") from None

    def arguments(self) -> list[str]:
        """The command line that :func:`parse` turns into these options again."""
        words = []
        for name, value in self.model_dump(exclude_none=True).items():
            if value is not False and (name != "port" or self.socket is None):
                words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
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
        argument_default=argparse.SUPPRESS,
    )
    for name, field in EngineOptions.model_fields.items():
        action = "store_true" if field.annotation is bool else "store"
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, action=action, required=name == "model", help=field.description)
    found = vars(parser.parse_args(arguments))
    if ("socket" in found) == ("port" in found):
        parser.error("write either --socket or --port")
    directory, name = locate(found.pop("model"))
    try:
        return EngineOptions.of(**{"name": name, **found, "model": directory})
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
    capabilities: tuple[str, ...] = ()
    """What the model can do, in words for clients."""
    port: int | None = None
    """Where it listens on TCP; None: on its Unix socket."""

    def line(self) -> bytes:
        """Says on standard output that the engine serves."""
        return orjson.dumps({"ready": self}) + b"\n"


_FACTS = TypeAdapter(EngineFacts)


def read_ready(line: bytes) -> EngineFacts:
    """Raises ValueError for what is no ready line."""
    try:
        return _FACTS.validate_python(orjson.loads(line)["ready"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the engine process wrote {line[:100]!r} instead of that it is ready") from error


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
        report = orjson.loads(line)["loading"]
        share = report["progress"]
        return (None if share is None else min(1.0, max(0.0, float(share)))), str(report["step"])[:100]
    except (KeyError, TypeError, ValueError):
        return None
