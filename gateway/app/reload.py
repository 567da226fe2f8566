"""SIGHUP: read the settings again, apply what can change while the gateway runs."""

from collections.abc import Callable
from dataclasses import dataclass
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


@dataclass
class Reload:
    """Keeps the settings in force; nothing changes where the new ones are wrong."""

    settings: Settings
    load: Callable[[], Settings]
    """Reads all sources again. May raise ConfigError."""
    apply: Callable[[Settings], None]
    """Takes up what is ``CHANGEABLE``. May raise ConfigError before it has changed anything."""
    on_change: Callable[[list[str]], None] | None = None
    """Hears what was taken up."""

    def __call__(self) -> None:
        """Reload. Never raises ConfigError: what is wrong is logged."""
        try:
            settings = self.load()
            self.apply(settings)
        except ConfigError as error:
            _log.error("settings_kept", reason=str(error))
            return
        before, after = _values(self.settings), _values(settings)
        changed = sorted(path for path in before if before[path] != after[path])
        fixed = [".".join(path) for path in changed if path not in CHANGEABLE]
        taken = [".".join(path) for path in changed if path in CHANGEABLE]
        _log.info("settings_reloaded", changed=taken)
        if self.on_change is not None:
            self.on_change(taken)
        if fixed:
            _log.warning("settings_need_a_restart", settings=fixed)
        for table, name in CHANGEABLE:
            changed_table = getattr(self.settings, table).model_copy(update={name: after[table, name]})
            self.settings = self.settings.model_copy(update={table: changed_table})


def _values(settings: Settings) -> dict[tuple[str, ...], Any]:
    """All settings by their path. A table that the operator fills in counts as one value."""
    found: dict[tuple[str, ...], Any] = {}
    for name, value in settings:
        if isinstance(value, BaseModel):
            found |= {(name, each): part for each, part in value}
        else:
            found[(name,)] = value
    return found
