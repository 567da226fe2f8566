"""What the agent and a model's server process agree on, and what a model's attributes may be.

The server process writes lines of JSON on standard output: ``{"loading": …}`` for each step of loading,
``{"ready": …}`` (:class:`ReadyLine`) when it can serve, ``{"state": …}`` after each change of its state,
and ``{"failed": …}`` before it ends for a reason that it knows.
"""

import argparse
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from agent.engines.model_names import why_not_nameable
from agent.serve.messages import ModelFacts
from agent.serve.model import PREDICT_PATH, Model, name_of_class
from shared.protocol.capabilities import usable_capabilities
from shared.protocol.limits import CAPABILITY_CHARS, MODEL_CAPABILITIES

MOST_BATCH = 4096
MOST_QUEUE = 100_000
MOST_WORKERS = 64
MOST_PATHS = 32
MOST_SECONDS = 86_400.0
MOST_BODY_BYTES = 4 * 1024**3
DEFAULT_WORKERS = 4

_KINDS = frozenset(("loading", "ready", "state", "progress", "failed"))

RESERVED = ("/health", "/metrics", "/v1/models", "/openapi.json", "/progress")
"""Paths that the server process answers itself."""


class CannotServe(Exception):
    """The model's attributes are not what they may be. The message says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """One model to serve; the command line of ``python -m agent.serve``."""

    spec: str
    """``module:Class``."""
    devices: tuple[str, ...]
    scratch: Path
    """An empty directory of the memory file system, for large parcels."""
    socket: Path | None = None
    port: int = 0
    """On loopback, for as long as there is no ``socket``; needs a key in $TRUNKLINE_ENGINE_KEY."""

    def arguments(self) -> list[str]:
        """The command line that :func:`parse` turns into these options again."""
        where = ["--port", str(self.port)] if self.socket is None else ["--socket", str(self.socket)]
        return [self.spec, "--devices", ",".join(self.devices), "--scratch", str(self.scratch), *where]


def parse(arguments: Sequence[str]) -> ServerOptions:
    """Read the command line; a wrong one ends the program with status 2 and its usage."""
    parser = argparse.ArgumentParser(
        prog="python -m agent.serve", description="Serve one model that is written as a Python class."
    )
    parser.add_argument("spec", metavar="module:Class")
    parser.add_argument("--devices", default="auto", help="cpu, auto, or numbers of GPUs: 0,1")
    parser.add_argument("--scratch", type=Path, required=True, help="a directory for what passes by memory")
    parser.add_argument("--socket", type=Path, help="Unix socket to listen on")
    parser.add_argument("--port", type=int, default=0, help="TCP port on 127.0.0.1; 0: any free one")
    found = parser.parse_args(arguments)
    try:
        devices = read_devices(found.devices)
    except ValueError as error:
        parser.error(str(error))
    return ServerOptions(
        spec=found.spec, devices=devices, scratch=found.scratch, socket=found.socket, port=found.port
    )


def read_devices(text: str | Iterable[str]) -> tuple[str, ...]:
    """``0,1`` → ``cuda:0``, ``cuda:1``. Anything else is passed to ``load`` as it is: ``cpu``, ``mps``, …;
    ``auto`` is the first GPU, or the CPU. Raises ValueError."""
    words = text.split(",") if isinstance(text, str) else list(text)
    devices = tuple(f"cuda:{word.strip()}" if word.strip().isdecimal() else word.strip() for word in words)
    if not devices or not all(d.isascii() and d.isprintable() and d and " " not in d for d in devices):
        raise ValueError("devices are numbers of GPUs or names such as cpu, separated by commas")
    if "codec" in devices or len(devices) > MOST_WORKERS or ("auto" in devices and len(devices) > 1):
        raise ValueError("devices are numbers of GPUs, or names such as cpu; auto stands alone")
    return devices


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyLine:
    """The ready line."""

    models: tuple[str, ...]
    slots: int
    devices: tuple[str, ...]
    port: int | None = None
    """Where it listens on TCP; None: on its Unix socket."""

    def line(self) -> bytes:
        return orjson.dumps({"ready": self}) + b"\n"


def read_line(line: str) -> dict[str, Any] | None:
    """What a line of the protocol says; None for any other line."""
    if not line.startswith('{"'):
        return None
    try:
        said = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    known = isinstance(said, dict) and len(said) == 1 and _KINDS & said.keys()
    return said if known else None


def line_of(kind: str, value: Any) -> bytes:
    return orjson.dumps({kind: value}) + b"\n"


def facts_of(model: Model) -> ModelFacts:
    """The attributes of ``model``. Raises :class:`CannotServe`."""
    names = tuple(model.models) or (model.name or name_of_class(type(model).__name__),)
    for name in names:
        if fault := why_not_nameable(name):
            raise CannotServe(f"the model's name {str(name)[:80]!r} cannot be offered: {fault}")
    routes = (model.routes,) if isinstance(model.routes, str) else tuple(model.routes)
    for path in routes:
        if not isinstance(path, str) or not path.startswith("/") or not path.isprintable() or " " in path:
            raise CannotServe(f"routes: {path!r} is no path; a path begins with / and holds no blanks")
        if path in RESERVED:
            raise CannotServe(f"routes: {path} is answered by the server itself")
    if len(routes) >= MOST_PATHS:
        raise CannotServe(f"routes: a model has at most {MOST_PATHS} paths")
    return ModelFacts(
        names=tuple(dict.fromkeys(names)),
        paths=tuple(dict.fromkeys((PREDICT_PATH, *routes))),
        max_batch=_whole(model, "max_batch", 1, MOST_BATCH),
        max_wait_s=_seconds(model, "max_wait_s", 0.0),
        max_queue=_whole(model, "max_queue", 0, MOST_QUEUE),
        timeout_s=_seconds(model, "timeout_s", 0.001),
        load_timeout_s=_seconds(model, "load_timeout_s", 0.001),
        max_body_bytes=_whole(model, "max_body_bytes", 0, MOST_BODY_BYTES),
        slots=None if model.slots is None else _whole(model, "slots", 1, MOST_QUEUE),
        workers=None if model.workers is None else _whole(model, "workers", 1, MOST_WORKERS),
        capabilities=_capabilities(model),
    )


def worker_count(asked: int | None) -> int:
    """How many processes decode and encode."""
    if asked is not None:
        return asked
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(DEFAULT_WORKERS, cpus)


def _capabilities(model: Model) -> tuple[str, ...]:
    said = [model.capabilities] if isinstance(model.capabilities, str) else list(model.capabilities)
    usable = usable_capabilities(said)
    if left_out := [word for word in said if word not in usable]:
        raise CannotServe(
            f"capabilities: {left_out[0]!r} is no word of at most {CAPABILITY_CHARS} letters, digits and "
            f"'_.:-', or one more than {MODEL_CAPABILITIES}"
        )
    return usable


def _whole(model: Model, name: str, least: int, most: int) -> int:
    value = getattr(model, name)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise CannotServe(f"{name} is {value!r}: it must be a whole number from {least} to {most}")
    return value


def _seconds(model: Model, name: str, least: float) -> float:
    value = getattr(model, name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= MOST_SECONDS:
        raise CannotServe(f"{name} is {value!r}: it must be seconds from {least:g} to {MOST_SECONDS:g}")
    return float(value)
