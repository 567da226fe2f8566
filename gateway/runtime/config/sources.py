"""Reads settings from flags, environment and file, and says exactly what is wrong with them."""

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_origin

import orjson
from pydantic import BaseModel, ValidationError
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from gateway.runtime.config.settings import PREFIX, Settings, is_loopback

CONFIG_VARIABLE = PREFIX + "CONFIG"

_FLAGS: dict[tuple[str, ...], str] = {("log", "style"): "--log-format"}
"""Of those that are not called as their settings are."""

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


class ConfigError(Exception):
    """Settings that cannot be right. The message names every key, value and place, one a line."""


class Loaded:
    """Settings and where each value came from."""

    def __init__(self, settings: Settings, sources: "_Sources") -> None:
        self.settings = settings
        self._sources = sources

    def toml(self, told: Mapping[str, str] = MappingProxyType({})) -> str:
        """The effective settings as a TOML file, with the source of each value. ``told`` has the sources of
        flags that were set by other means."""
        self._sources.told = told
        return "\n".join(_toml_lines(self.settings.model_dump(), self._sources))


def load(
    flags: Mapping[str, Any], config: Path | None = None, environment: Mapping[str, str] | None = None
) -> Loaded:
    """Settings from all sources. ``flags`` is a nested mapping like the file, without flags not given.

    Raises :class:`ConfigError`.
    """
    sources = _Sources(flags, os.environ if environment is None else environment, config)
    unknown = sources.unknown_variables()
    if unknown:
        raise ConfigError("\n".join(unknown))

    class Sourced(Settings):
        model_config = SettingsConfigDict(toml_file=config)

        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            assert isinstance(env_settings, EnvSettingsSource)
            env_settings.env_vars = sources.environment
            return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)

    try:
        settings = Sourced(**flags)
    except SettingsError as error:
        raise ConfigError("\n".join(sources.undecoded()) or str(error)) from None
    except ValidationError as error:
        raise ConfigError("\n".join(_complaints(error, sources))) from None
    except OSError as error:  # of a path that no file can have
        raise ConfigError(f"{error.filename!r} cannot be looked at: {error.strerror}") from None
    _refuse_exposure(settings)
    return Loaded(settings, sources)


def _refuse_exposure(settings: Settings) -> None:
    host, _ = settings.address
    if is_loopback(host) or settings.tls.cert is not None or settings.behind_tls_terminator:
        return
    raise ConfigError(
        f"listen = {settings.listen!r}: others could read keys and prompts on the way, so beyond this "
        "machine the gateway wants TLS. Give --tls-cert and --tls-key, or, if something in front of it ends "
        "TLS, --behind-tls-terminator."
    )


def _complaints(error: ValidationError, sources: "_Sources") -> Iterator[str]:
    for problem in error.errors(include_url=False):
        path = tuple(str(part) for part in problem["loc"])
        key, place = ".".join(path) or "settings", sources.place(path)
        if problem["type"] == "extra_forbidden":
            yield f"{key}: there is no such key{place}"
        else:
            given = str(problem["input"]) if isinstance(problem["input"], Path) else problem["input"]
            value = "" if isinstance(given, BaseModel | dict) else f" = {given!r}"
            yield f"{key}{value}: {_plainly(problem['type'], problem['msg'])}{place}"


def _plainly(kind: str, message: str) -> str:
    if kind == "path_not_file":
        return "there is no such file"
    return message.removeprefix("Value error, ").removeprefix("Input ")


class _Sources:
    """Where settings come from, to be able to say so."""

    def __init__(self, flags: Mapping[str, Any], environment: Mapping[str, str], config: Path | None) -> None:
        """Raises :class:`ConfigError` for a file that cannot be read."""
        self._flags = flags
        self.environment = {name.lower(): value for name, value in environment.items()}
        """As pydantic wants it: lower-case names."""
        self._config = config
        self.told: Mapping[str, str] = {}
        """By setting, where a flag really came from."""
        self._text = "" if config is None else _read(config)
        self._values = tomllib.loads(self._text)

    def unknown_variables(self) -> list[str]:
        """Complaints about variables with our prefix that set nothing."""
        known = {_variable(path) for path in _paths(Settings)} | {CONFIG_VARIABLE}
        ours = (name.upper() for name in sorted(self.environment) if name.upper().startswith(PREFIX))
        return [f"{name}: there is no such setting (environment)" for name in ours if name not in known]

    def undecoded(self) -> Iterator[str]:
        """Complaints about variables that are to hold more than one value and do not."""
        for path in _paths(Settings, composite=True):
            name = _variable(path)
            try:
                orjson.loads(self.environment.get(name.lower(), "null"))
            except orjson.JSONDecodeError:
                yield f'{name}: write lists and tables as JSON here, such as ["a", "b"] (environment)'

    def source(self, path: tuple[str | int, ...]) -> str:
        """Where the value at ``path`` comes from: a flag, a variable, a line of the file, or the default.
        Numbers in ``path`` count the tables of a list."""
        names = tuple(part for part in path if isinstance(part, str))
        if _holds(self._flags, path):
            return self.told.get(".".join(names)) or f"flag {_flag(names)}"
        for length in range(len(path), 0, -1):
            variable = _variable(tuple(str(part) for part in path[:length]))
            if variable.lower() in self.environment:
                said = self.environment[variable.lower()]
                if length == len(path) or _holds(_decoded(said), path[length:]):
                    return f"environment {variable}"
        if _holds(self._values, path):
            return f"line {_line_of(self._text, path)} of {self._config}"
        return "default"

    def place(self, path: tuple[str, ...]) -> str:
        """`` (line 3 of F)`` and the like; empty for a default."""
        if _holds(self._flags, path):
            return f" (flag {_flag(path)})"
        for length in range(len(path), 0, -1):
            if _variable(path[:length]).lower() in self.environment:
                return f" (environment {_variable(path[:length])})"
        line = _line_of(self._text, path)
        return f" (line {line} of {self._config})" if line else ""


def _read(config: Path) -> str:
    try:
        text = config.read_text("utf-8")
        tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {config}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"cannot read the configuration {config}: it is not UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{config} is not valid TOML: {error}") from error
    return text


def _flag(path: tuple[str, ...]) -> str:
    return _FLAGS.get(path) or f"--{'-'.join(path).replace('_', '-')}"


def _variable(path: tuple[str, ...]) -> str:
    return PREFIX + "__".join(path).upper()


def _paths(
    model: type[BaseModel], above: tuple[str, ...] = (), *, composite: bool = False
) -> Iterator[tuple[str, ...]]:
    """Of all settings, or of those that are lists and tables only."""
    for name, field in model.model_fields.items():
        kind = field.annotation
        table = kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None
        if table is not None or not composite or get_origin(kind) in (list, dict):
            yield (*above, name)
        if table is not None:
            yield from _paths(table, (*above, name), composite=composite)


def _decoded(text: str) -> Any:
    """A variable's value that holds more than one."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def _holds(values: Any, path: tuple[str | int, ...]) -> bool:
    for part in path:
        if isinstance(part, int):
            if not isinstance(values, list) or part >= len(values):
                return False
        elif not isinstance(values, Mapping) or part not in values:
            return False
        values = values[part]
    return True


def _line_of(text: str, path: tuple[str | int, ...]) -> int | None:
    """The line of a TOML file that sets ``path``, or the table it is in. Numbers count the tables of a
    list."""
    table: tuple[str | int, ...] = ()
    here: tuple[str | int, ...]
    counts: dict[tuple[str, ...], int] = {}
    best: tuple[int, int] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if stripped.startswith("["):
            name = _key_parts(stripped.strip("[]"))
            here = table = name
            if stripped.startswith("[["):
                count = counts[name] = counts.get(name, -1) + 1
                here = table = (*name, count) if any(isinstance(part, int) for part in path) else name
        elif "=" in stripped and not stripped.startswith("#"):
            here = (*table, *_key_parts(stripped.partition("=")[0]))
        else:
            continue
        if here and path[: len(here)] == here and (best is None or len(here) > best[0]):
            best = (len(here), number)
    return best[1] if best else None


def _key_parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in text.split("#")[0].rstrip(" ]").split("."))


def _toml_lines(
    values: Mapping[str, Any], sources: _Sources, table: tuple[str | int, ...] = ()
) -> Iterator[str]:
    for name, value in values.items():
        if not isinstance(value, Mapping) and not _is_tables(value):
            source = sources.source((*table, name))
            unset = value is None and source == "default"
            yield _toml_line(name, value) + ("" if unset else f"  # {source}")
    for name, value in values.items():
        if isinstance(value, Mapping):
            names = [part for part in (*table, name) if isinstance(part, str)]
            path = ".".join(each if _BARE_KEY.fullmatch(each) else _quoted(each) for each in names)
            yield from ("", f"[{path}]")
            yield from _toml_lines(value, sources, (*table, name))
        elif _is_tables(value):
            for place, each in enumerate(value):
                yield from ("", f"[[{name}]]")
                yield from _toml_lines(each, sources, (*table, name, place))


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)


def _toml_line(name: str, value: Any) -> str:
    if not _BARE_KEY.fullmatch(name):
        name = _quoted(name)
    if value is None:
        return f"# {name} is not set"
    if isinstance(value, bool):
        return f"{name} = {str(value).lower()}"
    if isinstance(value, int | float):
        return f"{name} = {value}"
    if isinstance(value, list):
        return f"{name} = [{', '.join(_quoted(str(each)) for each in value)}]"
    return f"{name} = {_quoted(str(value))}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
