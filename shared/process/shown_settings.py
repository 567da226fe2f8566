"""The effective settings of a program, each with where it comes from and without secrets."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel

from shared.process.settings import KeyPath, Origin, SettingsSources

HIDDEN = "**********"
"""Shown in place of a secret, as pydantic does."""

AnyModel = TypeVar("AnyModel", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class ShownSetting:
    """One value."""

    path: str
    """Names of tables and its own, with dots; ``engine[0].url`` in a list of tables."""
    value: Any
    """What JSON can hold; None: it is not set."""
    origin: Origin

    def as_json(self) -> dict[str, Any]:
        """For programs: ``from`` is ``flag``, ``environment``, ``file`` or ``default``."""
        origin = self.origin
        found = {"path": self.path, "value": self.value, "from": origin.kind}
        return (
            found
            | ({"name": origin.name} if origin.name else {})
            | ({"line": origin.line} if origin.line is not None else {})
        )

    def as_line(self) -> str:
        """For people."""
        value = "(not set)" if self.value is None else orjson.dumps(self.value).decode()
        return f"{self.path} = {value}  # {self.origin}"


def shown_settings(
    settings: AnyModel,
    sources: SettingsSources[AnyModel],
    *,
    secret: Collection[str] = (),
    instead: Mapping[str, Any] | None = None,
) -> Iterator[ShownSetting]:
    """Every setting. Values of a secret type are hidden, and those of the names in ``secret`` wherever they
    are. ``instead`` has what is shown of some paths, where a part of the value is secret."""
    for path, value in _walk(settings, settings.model_dump(mode="json"), ()):
        text = _text(path)
        if instead is not None and text in instead:
            value = instead[text]
        elif value not in (None, [], {}) and not frozenset(secret).isdisjoint(map(str, path)):
            value = HIDDEN
        origin = sources.origin(path)
        yield ShownSetting(text, _as_text(value), replace(origin, name=_as_text(origin.name)))


def _as_text(value: Any) -> Any:
    """A path of bytes that are no UTF-8 with these bytes escaped; anything else as it is."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def _walk(model: BaseModel, dumped: Any, above: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    for name in type(model).model_fields:
        value, shown, path = getattr(model, name), dumped[name], (*above, name)
        if isinstance(value, BaseModel):
            yield from _walk(value, shown, path)
        elif isinstance(value, list | tuple) and value and isinstance(value[0], BaseModel):
            for place, each in enumerate(value):
                yield from _walk(each, shown[place], (*path, place))
        else:
            yield path, shown


def _text(path: KeyPath) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)[1:]
