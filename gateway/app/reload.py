"""SIGHUP: read the settings again, apply what can change while the gateway runs (SURFACE, Configuration)."""

from collections.abc import Callable
from typing import Any

import structlog
from pydantic import BaseModel

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
            self._apply(settings)
        except ConfigError as error:
            _log.error("settings_kept", reason=str(error))
            return
        before, after = _values(self._settings), _values(settings)
        changed = sorted(path for path in before if before[path] != after[path])
        fixed = [".".join(path) for path in changed if path not in CHANGEABLE]
        taken = [".".join(path) for path in changed if path in CHANGEABLE]
        _log.info("settings_reloaded", changed=taken)
        if self._told is not None:
            self._told(taken)
        if fixed:
            _log.warning("settings_need_a_restart", settings=fixed)
        for table, name in CHANGEABLE:
            changed_table = getattr(self._settings, table).model_copy(update={name: after[table, name]})
            self._settings = self._settings.model_copy(update={table: changed_table})


def _values(settings: Settings) -> dict[tuple[str, ...], Any]:
    """By path; a table within a table, which an operator fills in, is one value."""
    found: dict[tuple[str, ...], Any] = {}
    for name, value in settings:
        if isinstance(value, BaseModel):
            found |= {(name, each): part for each, part in value}
        else:
            found[(name,)] = value
    return found
