"""SIGHUP: read the settings again, apply what can change while the gateway runs (SURFACE, Configuration)."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import structlog

from gateway.runtime.config import ConfigError, Settings

_log = structlog.get_logger(__name__)

CHANGEABLE = frozenset(
    {
        ("dispatch", "policy"),
        ("dispatch", "policies"),
        ("engines", "manage_role"),
        ("engines", "manage"),
        ("engines", "allow"),
        ("queue", "tenant_weights"),
        ("reuse", "models"),
        ("reuse", "by_header"),
    }
)
"""Settings that running gateways take up."""


class Reload:
    """Keeps the settings in force; nothing changes where the new ones are wrong."""

    def __init__(
        self,
        settings: Settings,
        load: Callable[[], Settings],
        apply: Callable[[Settings], None],
        told: Callable[[list[str]], None] | None = None,
    ) -> None:
        """``load`` reads all sources again and may raise ConfigError; ``apply`` takes up what is
        ``CHANGEABLE`` and may raise ConfigError before it has changed anything. ``told`` hears what it
        took up."""
        self._settings = settings
        self._load = load
        self._apply = apply
        self._told = told

    def __call__(self) -> None:
        """Somebody asked for it. Never raises ConfigError: what is wrong is logged."""
        try:
            settings = self._load()
            changed = sorted(_changes(self._settings.model_dump(), settings.model_dump()))
            self._apply(settings)
        except ConfigError as error:
            _log.error("settings_kept", reason=str(error))
            return
        fixed = [".".join(path) for path in changed if path not in CHANGEABLE]
        taken = [".".join(path) for path in changed if path in CHANGEABLE]
        _log.info("settings_reloaded", changed=taken)
        if self._told is not None:
            self._told(taken)
        if fixed:
            _log.warning("settings_need_a_restart", settings=fixed)
        self._settings = self._settings.model_copy(update=dict(_tables(self._settings, settings)))


def _tables(before: Settings, after: Settings) -> Iterator[tuple[str, Any]]:
    """The tables of ``before`` with what can change as it is in ``after``."""
    for name in {table for table, _ in CHANGEABLE}:
        values = {key: getattr(getattr(after, name), key) for table, key in CHANGEABLE if table == name}
        yield name, getattr(before, name).model_copy(update=values)


def _changes(
    before: Mapping[str, Any], after: Mapping[str, Any], above: tuple[str, ...] = ()
) -> Iterator[tuple[str, ...]]:
    """Paths of the values that differ; a table that an operator fills in is one value."""
    for name, value in before.items():
        path = (*above, name)
        if isinstance(value, dict) and path not in CHANGEABLE:
            yield from _changes(value, after[name], path)
        elif value != after[name]:
            yield path
