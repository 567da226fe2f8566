"""Reads the agent's settings from flags, environment and file, and says exactly what is wrong with them.

No other module of the agent reads the environment for settings.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent.config.config import AgentConfig
from shared.process.settings import (
    ConfigError,
    ReadErrors,
    SettingsFile,
    SettingsMistake,
    SettingsSources,
)
from shared.process.tracing.settings import with_endpoint

PREFIX = "TRUNKLINE_AGENT_"
CONFIG_VARIABLE = f"{PREFIX}CONFIG"

SECRETS = frozenset(
    {"join", "api_key", "engine_key", "management_key", "command", "restart", "environment", "headers"}
)

_ENGINE_FLAGS = {
    "url": "--engine",
    "torch": "--torch",
    "device": "--device",
    "python": "--python",
    "devices": "--devices",
    "workflows": "--workflows",
}
"""The keys of an engine that have a flag, whose value is the key's."""

_READ_ERRORS = ReadErrors("{0} cannot be read: {1}", "{0} is not UTF-8", "{0}: {1}")

_USER_INFO = re.compile(r"(?<=://)[^\s'\"]*(?=@)")
"""Of a URL: the name and the password that may precede its host."""


def load(flags: Mapping[str, Any], file: Path | None) -> AgentConfig:
    """Settings from ``flags`` (those that were given), the environment, and ``file``.

    Raises :class:`ConfigError`.
    """
    return load_with_sources(flags, file)[0]


def load_with_sources(
    flags: Mapping[str, Any], file: Path | None
) -> tuple[AgentConfig, SettingsSources[AgentConfig]]:
    """As :func:`load`, with where each value comes from."""
    if file is None and os.environ.get(CONFIG_VARIABLE):
        file = Path(os.environ[CONFIG_VARIABLE])
    sources = SettingsSources(
        AgentConfig,
        PREFIX,
        flags,
        with_endpoint(os.environ, PREFIX + "OTEL", '{"endpoint": "{}"}'),
        SettingsFile.read(file, _READ_ERRORS),
        ignore_empty=True,
        flag_names={("labels",): "--label"},
    )
    if unknown := sources.unknown_variables(CONFIG_VARIABLE):
        known = sorted({*AgentConfig.model_fields, "config"})
        raise ConfigError(f"{unknown[0]}: no such setting; {PREFIX}… are: {', '.join(known)}")
    return sources.load(_explain), sources


def _explain(mistake: SettingsMistake) -> str:
    """One line; no password, also where a URL holds one that may hold none."""
    return _USER_INFO.sub("…", _line(mistake))


def _line(mistake: SettingsMistake) -> str:
    path, message, value, origin = mistake.path, mistake.message, mistake.value, mistake.origin
    if not path:
        return message
    if mistake.kind == "missing" and len(path) == 1:
        name = str(path[0])
        return f"{name} is not given: use --{name}, {PREFIX}{name.upper()}, or {name} in the --config file"
    if origin.kind == "flag" and len(path) == 3 and (flag := _ENGINE_FLAGS.get(str(path[2]))):
        return f"{flag}: {message}" if repr(value) in message else f"{flag} {value!r}: {message}"
    secret = not SECRETS.isdisjoint(path) or isinstance(value, dict | list)
    where = f"{origin.name}:{origin.line or 1}" if origin.kind == "file" else origin.name
    if origin.kind != "file" and len(path) == 1:  # the name of the flag or the variable is the key's
        return f"{where}: {message}" if secret else f"{where} {value!r}: {message}"
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)[1:]
    if mistake.kind == "extra_forbidden":
        return f"{where}: {key}: there is no such key"
    return f"{where}: {key}: {message}" if secret else f"{where}: {key} = {value!r}: {message}"
