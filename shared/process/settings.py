"""Settings from flags, environment and a TOML file, in this order, and where each value comes from.

The model declares every setting once. A variable's name is the prefix and the setting's name in upper case;
where there is a delimiter, variables reach into tables. What cannot be right is a :class:`ConfigError`.
"""

import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar, get_args, get_origin

import orjson
from pydantic import BaseModel, ValidationError
from pydantic_settings import EnvSettingsSource, NoDecode, SettingsError

from shared.process.texts import NO_TEXT, is_text

Model = TypeVar("Model", bound=BaseModel)

KeyPath = tuple[str | int, ...]
"""The path of a value in the file: names of tables and keys; a number is a place in a list."""

_KEY_PART = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([A-Za-z0-9_-]+))\s*""")


_SERVICE_HOST = "_SERVICE_HOST"
_SERVICE_LINK = re.compile(
    r"_SERVICE_HOST|_SERVICE_PORT(_[A-Z0-9_]+)?|_PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?"
)
"""Of a variable of Kubernetes, what follows the service's name."""


class ConfigError(Exception):
    """Settings that cannot be right. The message names every key, value and place, one a line."""


class ReadErrors(NamedTuple):
    """What is said of a file that cannot be read: forms of the file (``{0}``) and the reason (``{1}``)."""

    unreadable: str
    not_utf8: str
    not_toml: str


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """A configuration file: its values, and its text, to find lines in."""

    path: Path | None = None
    text: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path | None, errors: ReadErrors) -> "SettingsFile":
        """Without a path there is nothing in it. Raises :class:`ConfigError`."""
        if path is None:
            return cls()
        try:
            text = path.read_text("utf-8-sig")  # some editors write a byte order mark
            return cls(path, text, tomllib.loads(text))
        except OSError as error:
            raise ConfigError(errors.unreadable.format(path, error.strerror)) from error
        except UnicodeDecodeError as error:
            raise ConfigError(errors.not_utf8.format(path)) from error
        except RecursionError as error:
            raise ConfigError(errors.not_toml.format(path, "it is nested too deeply")) from error
        except ValueError as error:  # tomllib.TOMLDecodeError among them, and numbers of too many digits
            raise ConfigError(errors.not_toml.format(path, error)) from error

    def line_of(self, path: KeyPath) -> int | None:
        """The line that sets ``path``, or else that of the table it is in."""
        table: KeyPath = ()
        counts: dict[KeyPath, int] = {}
        best: tuple[int, int] | None = None
        for number, line in enumerate(self.text.splitlines(), 1):
            stripped = line.strip()
            if stripped.startswith("["):
                names = _key_parts(stripped.lstrip("[").partition("]")[0])
                if stripped.startswith("[["):
                    counts[names] = counts.get(names, -1) + 1
                here = table = tuple(_counted(names, counts))
            elif "=" in stripped and not stripped.startswith("#"):
                here = (*table, *_key_parts(stripped.partition("=")[0]))
            else:
                continue
            if here[:-1] == path:  # the first of a list of tables stands for the list
                here = path
            if here and path[: len(here)] == here and (best is None or len(here) > best[0]):
                best = (len(here), number)
        return best[1] if best else None


def _key_parts(text: str) -> KeyPath:
    return tuple("".join(groups) for groups in _KEY_PART.findall(text))


def _counted(names: KeyPath, counts: Mapping[KeyPath, int]) -> Iterator[str | int]:
    """The path of a table: behind the name of each list of tables, which of them it is."""
    for place, name in enumerate(names, 1):
        yield name
        if names[:place] in counts:
            yield counts[names[:place]]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value comes from. ``name`` is that of the flag, of the variable, or of the file."""

    kind: str
    """``flag``, ``environment``, ``file`` or ``default``."""
    name: str = ""
    line: int | None = None

    def __str__(self) -> str:
        if self.kind == "file":
            return f"line {self.line} of {self.name}"
        return f"{self.kind} {self.name}".strip()


DEFAULT = Origin("default")


@dataclass(frozen=True, slots=True)
class SettingsMistake:
    """One value that cannot be."""

    path: KeyPath
    """Empty for what is wrong with several values together."""
    kind: str
    """Pydantic's type of the error."""
    message: str
    value: Any
    origin: Origin


@dataclass(frozen=True, slots=True)
class SettingsSources(Generic[Model]):
    """What was given to a program. ``flags`` are nested as the file is, without those that were not given."""

    model: type[Model]
    prefix: str
    """The prefix of variables, in upper case."""
    flags: Mapping[str, Any]
    environment: Mapping[str, str]
    file: SettingsFile
    delimiter: str | None = None
    """Between the names of a table and of its key in a variable's name; None: variables set whole tables."""
    ignore_empty: bool = False
    """An empty variable counts as one that is not set."""
    flag_names: Mapping[KeyPath, str] = field(default_factory=dict)
    """The names of flags that differ from the names of their settings."""

    def unknown_variables(self, *known: str) -> list[str]:
        """Variables with the prefix that set nothing and are not ``known`` either, nor of Kubernetes."""
        names = {self._variable(path) for path in self._variable_paths(self.model)}
        ours = [name.upper() for name in self.environment if name.upper().startswith(self.prefix)]
        unknown = {*ours}.difference(names, known)
        return sorted(unknown.difference(_service_links(unknown)))

    def load(self, explain: Callable[[SettingsMistake], str]) -> Model:
        """The settings. Raises :class:`ConfigError` with a line for each mistake, as ``explain`` words it."""
        variables = EnvSettingsSource(
            self.model,  # type: ignore[arg-type]  # any model will do
            env_prefix=self.prefix,
            env_nested_delimiter=self.delimiter,
        )
        variables.env_vars = self._variables
        if mistakes := list(self._without_text()):
            raise ConfigError("\n".join(mistakes))
        try:
            values = _merged(_merged(self.file.values, variables()), self.flags)
            return self.model.model_validate(values)
        except SettingsError as error:
            raise ConfigError("\n".join(self._undecoded()) or str(error)) from None
        except ValidationError as error:
            raise ConfigError("\n".join(map(explain, self._mistakes(error)))) from None
        except OSError as error:  # of a path that no file can have
            raise ConfigError(f"{error.filename!r} cannot be looked at: {error.strerror}") from None

    def origin(self, path: KeyPath) -> Origin:
        """Where the value at ``path`` comes from, whether it is the default or not."""
        origin, depth = self._deepest(path)
        return origin if depth == len(path) else DEFAULT

    def _deepest(self, path: KeyPath) -> tuple[Origin, int]:
        """The source that has the most of ``path``, and how much. A value hides all of the later sources."""
        best, most = DEFAULT, 0
        for origin, above, values in self._given(path):
            depth, replaces = _depth_in(values, path[above:])
            if above + depth > most:
                best, most = origin, above + depth
            if replaces and most:
                break
        if best.kind == "file":
            best = Origin("file", best.name, self.file.line_of(path))
        return best, most

    def _given(self, path: KeyPath) -> Iterator[tuple[Origin, int, Any]]:
        """What may hold ``path``, first what wins: its origin, how much of the path leads to it, and it."""
        named = path if self.delimiter else path[:1]
        flag = self.flag_names.get(named) or f"--{'-'.join(map(str, named)).replace('_', '-')}"
        yield Origin("flag", flag), 0, self.flags
        for length in range(len(named), 0, -1):
            name = self._variable(path[:length])
            if (text := self._variables.get(name.lower())) is not None:
                yield Origin("environment", name), length, _decoded(text)
        yield Origin("file", str(self.file.path)), 0, self.file.values

    @property
    def _variables(self) -> dict[str, str]:
        """As pydantic wants them: with lower-case names."""
        return {
            name.lower(): text for name, text in self.environment.items() if text or not self.ignore_empty
        }

    def _variable(self, path: KeyPath) -> str:
        return self.prefix + (self.delimiter or "").join(map(str, path)).upper()

    def _variable_paths(
        self, model: type[BaseModel], above: KeyPath = (), *, composite: bool = False
    ) -> Iterator[KeyPath]:
        """The paths of all settings that variables can set; with ``composite`` only of lists and tables."""
        for name, each in model.model_fields.items():
            kind = each.annotation
            table = kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None
            decoded = get_origin(kind) in (list, dict, tuple) and NoDecode not in each.metadata
            if table is not None or decoded or not composite:
                yield (*above, name)
            if table is not None and self.delimiter:
                yield from self._variable_paths(table, (*above, name), composite=composite)

    def _undecoded(self) -> Iterator[str]:
        """The names of variables that should hold a list or a table and do not."""
        for path in self._variable_paths(self.model, composite=True):
            name = self._variable(path)
            try:
                orjson.loads(self._variables.get(name.lower(), "null"))
            except orjson.JSONDecodeError:
                yield f'{name}: write lists and tables as JSON here, such as ["a", "b"] (environment)'

    def _without_text(self) -> Iterator[str]:
        """The names of variables that hold bytes which are no text, which only paths may have."""
        for path in self._variable_paths(self.model):
            name = self._variable(path)
            if not is_text(self._variables.get(name.lower(), "")) and not self._is_file_path(path):
                yield f"{name}: {NO_TEXT}"

    def _is_file_path(self, path: KeyPath) -> bool:
        model: Any = self.model
        for part in path[:-1]:
            model = model.model_fields[part].annotation
        kind = model.model_fields[path[-1]].annotation
        return any(getattr(each, "__origin__", each) is Path for each in (kind, *get_args(kind)))

    def _mistakes(self, error: ValidationError) -> Iterator[SettingsMistake]:
        for item in error.errors(include_url=False, include_context=False):
            path = tuple(item["loc"])
            message = item["msg"].removeprefix("Value error, ").removeprefix("Input ")
            yield SettingsMistake(path, item["type"], message, item["input"], self._deepest(path)[0])


def _service_links(names: Collection[str]) -> Iterator[str]:
    """Those with which Kubernetes tells each pod of the services in its namespace. A service that is called
    trunkline-agent or trunkline-gateway has the prefix of our settings."""
    services = [name.removesuffix(_SERVICE_HOST) for name in names if name.endswith(_SERVICE_HOST)]
    for name in names:
        if any(name.startswith(each) and _SERVICE_LINK.fullmatch(name, len(each)) for each in services):
            yield name


def _depth_in(values: Any, path: KeyPath) -> tuple[int, bool]:
    """How much of ``path`` there is in ``values``, and whether that is no table, and so no part of one. Text
    that becomes a list or a table only when it is checked has everything."""
    replaces = not isinstance(values, Mapping)
    for depth, part in enumerate(path):
        if isinstance(values, Mapping):
            if part not in values:
                return depth, replaces
        elif not isinstance(values, list | tuple) or not isinstance(part, int):
            return len(path), True
        elif part >= len(values):
            return depth, True
        values = values[part]
        replaces = replaces or not isinstance(values, Mapping)
    return len(path), replaces


def _decoded(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def _merged(values: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``over`` on top of ``values``; tables that both have are merged in turn."""
    merged = dict(values)
    for name, value in over.items():
        below = merged.get(name)
        merged[name] = (
            _merged(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
        )
    return merged
