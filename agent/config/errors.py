"""Says what is wrong with a setting: its key, its value, and the flag, variable or line it comes from."""

import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

SECRETS = frozenset({"join", "api_key", "engine_key", "command", "environment"})
FLAGS = {"labels": "--label", "ca_file": "--ca-file", "drain_s": "--drain-s"}

_LISTED: Mapping[str, Collection[str]] = {"engine": ("url", "torch")}
"""Settings that are lists of tables, and which of their keys have a flag, whose value is the key's."""

_USER_INFO = re.compile(r"(?<=://)[^\s'\"]*(?=@)")
"""Of a URL: the name and the password that may precede its host."""

Place = tuple[str | int, ...]


class AgentConfigError(Exception):
    """Settings that cannot be. The message is for whoever wrote them."""


@dataclass(frozen=True, slots=True)
class TomlFile:
    """A configuration file: its values, and its text, to find lines in."""

    path: Path | None = None
    text: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> "TomlFile":
        """Raises :class:`AgentConfigError`."""
        try:
            text = path.read_text(encoding="utf-8")
            return cls(path, text, tomllib.loads(text))
        except OSError as error:
            raise AgentConfigError(f"{path} cannot be read: {error.strerror}") from error
        except UnicodeDecodeError:
            raise AgentConfigError(f"{path} is not UTF-8") from None
        except tomllib.TOMLDecodeError as error:
            raise AgentConfigError(f"{path}: {error}") from None

    def line_of(self, place: Place) -> int:
        """The line on which the value at ``place`` is given; 1 when it cannot be told."""
        lines = self.text.splitlines()
        start, found = 0, 0
        for depth, key in enumerate(place):
            if isinstance(key, int):
                continue
            count = place[depth + 1] if depth + 1 < len(place) else 0
            header = re.compile(rf"\s*\[\[?\s*{re.escape(key)}\s*\]")
            headers = [i for i, line in enumerate(lines) if i >= start and header.match(line)]
            if headers:
                start = headers[min(count, len(headers) - 1)] if isinstance(count, int) else headers[0]
                found = start
                continue
            entry = re.compile(rf"""\s*["']?{re.escape(key)}["']?\s*[=.]""")
            found = next((i for i, line in enumerate(lines) if i >= start and entry.match(line)), found)
            start = found
        return found + 1


def unknown_variables(environ: Mapping[str, str], prefix: str, known: Collection[str]) -> list[str]:
    """Variables that begin with ``prefix`` and are no setting: misspelt, most likely."""
    return sorted(
        name for name in environ if name.startswith(prefix) and name.removeprefix(prefix).lower() not in known
    )


def explain(
    error: ValidationError, flags: Mapping[str, Any], environ: Mapping[str, str], prefix: str, toml: TomlFile
) -> str:
    """One line per mistake; no password, also where a URL holds one that may hold none."""
    lines = "\n".join(
        _explain(tuple(item["loc"]), item["type"], item["msg"], item["input"], flags, environ, prefix, toml)
        for item in error.errors(include_url=False, include_context=False)
    )
    return _USER_INFO.sub("…", lines)


def _explain(
    place: Place,
    kind: str,
    message: str,
    value: Any,
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    prefix: str,
    toml: TomlFile,
) -> str:
    message = message.removeprefix("Value error, ").removeprefix("Input ")
    if not place:
        return message
    first = str(place[0])
    flag = FLAGS.get(first, f"--{first.replace('_', '-')}")
    if first in flags and len(place) == 3 and place[2] in _LISTED.get(first, ()):
        flag = "--engine" if place[2] == "url" else f"--{place[2]}"
        return f"{flag}: {message}" if repr(value) in message else f"{flag} {value!r}: {message}"
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)[1:]
    if kind == "missing" and len(place) == 1:
        return f"{first} is not given: use {flag}, {prefix}{first.upper()}, or {first} in the --config file"
    secret = any(part in SECRETS for part in place) or isinstance(value, dict | list)
    variable = prefix + first.upper()
    if first in flags or variable in environ:
        where = flag if first in flags else variable
        if len(place) == 1:  # the name of the flag or the variable is the key's
            return f"{where}: {message}" if secret else f"{where} {value!r}: {message}"
    else:
        where = f"{toml.path}:{toml.line_of(place)}"
    if kind == "extra_forbidden":
        return f"{where}: {key}: there is no such key"
    return f"{where}: {key}: {message}" if secret else f"{where}: {key} = {value!r}: {message}"
