"""Reads settings from flags, environment and file, and says exactly what is wrong with them."""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel

from gateway.domain.urls import is_own
from gateway.runtime.config.settings import PREFIX, Settings
from shared.process.excerpt import printable
from shared.process.settings import (
    ConfigError,
    KeyPath,
    ReadErrors,
    SettingsFile,
    SettingsMistake,
    SettingsSources,
)
from shared.process.tracing.settings import with_endpoint

CONFIG_VARIABLE = PREFIX + "CONFIG"

_READ_ERRORS = ReadErrors(
    "cannot read the configuration {0}: {1}",
    "cannot read the configuration {0}: it is not UTF-8",
    "{0} is not valid TOML: {1}",
)

_ENDPOINT = PREFIX + "OTEL__ENDPOINT"

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True)
class Loaded:
    """Settings and where each value came from."""

    settings: Settings
    sources: SettingsSources[Settings]

    def toml(self, flag_sources: Mapping[str, str] = MappingProxyType({})) -> str:
        """The effective settings as a TOML file, with the source of each value. ``flag_sources``
        has the sources of flags that were set by other means."""

        def source(path: KeyPath) -> str:
            origin = self.sources.origin(path)
            return (flag_sources.get(".".join(map(str, path))) if origin.kind == "flag" else None) or str(
                origin
            )

        values = self.settings.model_dump()
        if (address := self.settings.store_address) is not None:
            values["store"]["url"] = address.url_without_password
        return "\n".join(_toml_lines(values, source))


def load(
    flags: Mapping[str, Any], config: Path | None = None, environment: Mapping[str, str] | None = None
) -> Loaded:
    """Settings from all sources. ``flags`` is a nested mapping like the file, without flags not given.

    Raises :class:`ConfigError`.
    """
    sources = SettingsSources(
        Settings,
        PREFIX,
        flags,
        with_endpoint(os.environ if environment is None else environment, _ENDPOINT, "{}"),
        SettingsFile.read(config, _READ_ERRORS),
        delimiter="__",
        flag_names={("log", "style"): "--log-format", ("store", "url"): "--store"},
    )
    if unknown := sources.unknown_variables(CONFIG_VARIABLE):
        raise ConfigError("\n".join(f"{name}: there is no such setting (environment)" for name in unknown))
    settings = sources.load(_explain)
    _refuse_exposure(settings)
    return Loaded(settings, sources)


def _refuse_exposure(settings: Settings) -> None:
    host, _ = settings.address
    if is_own(host) or settings.tls.cert is not None or settings.behind_tls_terminator:
        return
    raise ConfigError(
        f"listen = {settings.listen!r}: others could read keys and prompts on the way, so beyond this "
        "machine the gateway wants TLS. Give --tls-cert and --tls-key, or, if something in front of it ends "
        "TLS, --behind-tls-terminator."
    )


def _explain(mistake: SettingsMistake) -> str:
    key = ".".join(map(str, mistake.path)) or "settings"
    place = "" if mistake.origin.kind == "default" else f" ({mistake.origin})"
    if mistake.kind == "extra_forbidden":
        return f"{key}: there is no such key{place}"
    given = str(mistake.value) if isinstance(mistake.value, Path) else mistake.value
    value = "" if isinstance(given, BaseModel | dict) else f" = {given!r}"
    message = "there is no such file" if mistake.kind == "path_not_file" else mistake.message
    return f"{key}{value}: {message}{place}"


def _toml_lines(
    values: Mapping[str, Any], source: Callable[[KeyPath], str], table: KeyPath = ()
) -> Iterator[str]:
    for name, value in values.items():
        if not isinstance(value, Mapping) and not _is_tables(value):
            said = printable(source((*table, name)))
            unset = value is None and said == "default"
            yield _toml_line(name, value) + ("" if unset else f"  # {said}")
    for name, value in values.items():
        path = ".".join(_toml_key(part) for part in (*table, name) if isinstance(part, str))
        if isinstance(value, Mapping):
            yield from ("", f"[{path}]")
            yield from _toml_lines(value, source, (*table, name))
        elif _is_tables(value):
            for place, each in enumerate(value):
                yield from ("", f"[[{path}]]")
                yield from _toml_lines(each, source, (*table, name, place))


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)


def _toml_line(name: str, value: Any) -> str:
    if value is None:
        return f"# {_toml_key(name)} is not set"
    return f"{_toml_key(name)} = {_toml_value(value)}"


def _toml_key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _toml_value(name)


def _toml_value(value: Any) -> str:
    """JSON's text, numbers, booleans and lists are TOML's, too, but for DEL, which TOML wants escaped, and
    for what is infinite."""
    if value == inf:
        return "inf"
    return json.dumps(value, ensure_ascii=False, default=str).replace("\x7f", "\\u007f")
