"""What single values of the agent's settings may be, as types that pydantic validates."""

import re
import shlex
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, ByteSize, Field, SecretStr

from agent.engines.http.kind import check_continues
from agent.engines.model_names import is_nameable
from agent.serve.options import read_devices
from shared.identity import NAME_RULE, is_name
from shared.process.texts import as_field_value
from shared.protocol.deployment_state import GPU_INDEX

Slots = Annotated[int, Field(ge=1, le=100_000)]
Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
Memory = Annotated[ByteSize, Field(gt=0, le=2**50)]
"""Bytes, or text such as ``14 GiB``."""
Continues = Annotated[dict[str, str], AfterValidator(check_continues)]
"""Route → how an engine is asked to go on with an answer that another engine began: ``final_message`` or
``prefill``, for completions ``prompt``. Empty: not at all."""

GpuIndex = Annotated[int, Field(ge=0, le=GPU_INDEX)]

_DEVICE = re.compile(r"auto|cpu|cuda(:[0-9]{1,3})?")


def check_name(name: str) -> str:
    """``name``, if it can be an agent's or an engine's. Raises ValueError."""
    if not is_name(name):
        raise ValueError(NAME_RULE)
    return name


def _check_key(key: SecretStr) -> SecretStr:
    return SecretStr(as_field_value(key.get_secret_value()))


Key = Annotated[SecretStr, AfterValidator(_check_key)]
"""Sent to an engine in a header field."""


def _check_path(path: Path) -> Path:
    if "\0" in str(path):
        raise ValueError("a path holds no zero byte")
    return path


FilePath = Annotated[Path, AfterValidator(_check_path)]
"""Of a file or a directory that need not be there."""


def _check_health(path: str) -> str:
    if not path.startswith("/") or not path.isprintable() or " " in path:
        raise ValueError("a path begins with / and holds no blanks")
    return path


def _directory_at(path: Path) -> Path | None:
    """The directory there, with an absolute path. ``~`` is the user's home, ``~NAME`` that of another."""
    try:
        directory = path.expanduser().absolute()
        return directory if directory.is_dir() else None
    except (OSError, ValueError, RuntimeError):  # a name too long or with a zero byte; a user that is none
        return None


def _check_directory(path: Path) -> Path:
    directory = _directory_at(path)
    if directory is None:
        raise ValueError("there is no such directory")
    return directory


HealthPath = Annotated[str, Field(max_length=1024), AfterValidator(_check_health)]
Directory = Annotated[Path, AfterValidator(_check_directory)]


def _check_command(words: tuple[str, ...]) -> tuple[str, ...]:
    if not words or not words[0] or any("\0" in word for word in words):
        raise ValueError("a command begins with a program")
    return words


def _check_environment(variables: dict[str, str]) -> dict[str, str]:
    for name, text in variables.items():
        if not name or "=" in name or "\0" in name + text:
            raise ValueError(f"{name!r} is no name of a variable, or its value holds a zero byte")
    return variables


def _check_device(devices: str) -> str:
    parts = devices.split(",")
    if not all(_DEVICE.fullmatch(part) for part in parts) or len(set(parts)) < len(parts):
        raise ValueError("a device is auto, cpu, cuda or cuda:NUMBER; for several engines: cuda:0,cuda:1")
    return devices


def _check_torch(model: str) -> str:
    if model == "demo":
        return model
    directory = _directory_at(Path(model)) if model else None
    if directory is None:
        raise ValueError("a model is 'demo' or a directory, and there is no such directory")
    if not is_nameable(directory.name):
        raise ValueError("the model is called after its directory, whose name must hold no blanks")
    return str(directory)


TorchDevice = Annotated[str, AfterValidator(_check_device)]
TorchModel = Annotated[str, AfterValidator(_check_torch)]
Environment = Annotated[dict[str, str], AfterValidator(_check_environment)]
Command = Annotated[
    tuple[str, ...],
    BeforeValidator(lambda value: shlex.split(value) if isinstance(value, str) else value),
    AfterValidator(_check_command),
]


def _split_devices(value: object) -> object:
    """``0,1``, a number, or a list of numbers and names, as :class:`PythonSettings` wants them."""
    words = [str(word) for word in value] if isinstance(value, list | tuple) else [str(value)]
    return read_devices(",".join(words))


Devices = Annotated[tuple[str, ...], BeforeValidator(_split_devices)]
