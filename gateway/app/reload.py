"""SIGHUP: read the settings again, apply what can change while the gateway runs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog
from pydantic import BaseModel, ValidationError

from gateway.runtime.config import ConfigError, Settings
from gateway.runtime.config.regions import RegionsTable

_log = structlog.get_logger(__name__)

CHANGEABLE = frozenset(
    {
        ("dispatch", "policy"),
        ("dispatch", "policies"),
        ("engines", "manage_role"),
        ("engines", "manage"),
        ("engines", "allow"),
        ("metrics", "tenant_classes"),
        ("queue", "tenant_weights"),
        ("regions", "blip_s"),
        ("regions", "blips"),
        ("regions", "failback_most_s"),
        ("regions", "failback_s"),
        ("regions", "forget_s"),
        ("regions", "nearest_first"),
        ("regions", "pilot"),
        ("regions", "pilot_wait_s"),
        ("regions", "price_s"),
        ("regions", "prices"),
        ("regions", "ramp_s"),
        ("regions", "shift_wait_s"),
        ("regions", "shifts"),
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
            _check_regions(taken_up(self.settings, settings).regions)
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
        self.settings = taken_up(self.settings, settings)


def taken_up(before: Settings, after: Settings) -> Settings:
    """The settings in force once a gateway that ran with ``before`` has read ``after``."""
    for table, name in CHANGEABLE:
        value = getattr(getattr(after, table), name)
        changed_table = getattr(before, table).model_copy(update={name: value})
        before = before.model_copy(update={table: changed_table})
    return before


def _check_regions(table: RegionsTable) -> None:
    """Raises ConfigError where what is taken up does not fit what stays, the gateway's own region."""
    try:
        RegionsTable.model_validate(dict(table))
    except ValidationError as error:
        why = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{why}, until it is started anew") from None


def shown_settings(settings: Settings) -> list[dict[str, Any]]:
    """Every setting by its path, for operators: its value as JSON has it, with secrets hidden; whether it was
    set anywhere; whether a running gateway takes up another value."""
    set_tables = settings.model_fields_set
    shown: list[dict[str, Any]] = []
    for path, value in sorted(_as_json(settings).items()):
        table = getattr(settings, path[0])
        given = path[0] in set_tables
        if len(path) == 2:
            given = path[1] in table.model_fields_set
        facts = {"path": ".".join(path), "value": value, "set": given, "changeable": path in CHANGEABLE}
        shown.append(facts)
    return shown


def _as_json(settings: Settings) -> dict[tuple[str, ...], Any]:
    """As :func:`_values`, as JSON has them."""
    dumped = settings.model_dump(mode="json")
    return {
        path: dumped[path[0]] if len(path) == 1 else dumped[path[0]][path[1]] for path in _values(settings)
    }


def _values(settings: Settings) -> dict[tuple[str, ...], Any]:
    """All settings by their path. A table that the operator fills in counts as one value."""
    found: dict[tuple[str, ...], Any] = {}
    for name, value in settings:
        if isinstance(value, BaseModel):
            found |= {(name, each): part for each, part in value}
        else:
            found[(name,)] = value
    return found
