"""The aliases in memory, as fresh as the store."""

from collections.abc import Callable, Collection, Mapping

import structlog

from gateway.pipeline.aliases.target_choice import TargetChoice
from gateway.storage import AliasRecord, AliasStore

_log = structlog.get_logger(__name__)


class AliasCache:
    """Every alias by its name. A change that another process makes counts from the next request on, as one
    of a key does: whoever looks after the keys calls :meth:`read` in a thread and then what it gives. All
    else belongs to the event loop's thread.
    """

    def __init__(self, store: AliasStore) -> None:
        """Reads every alias. Raises StateError."""
        self._store = store
        self._revision = -1
        self.choices: Mapping[str, TargetChoice] = {}
        self.records: Mapping[str, AliasRecord] = {}
        self.versioned: Collection[str] = ()
        """Models of which some alias names a version."""
        self.read()()

    def models_of(self, name: str) -> tuple[str, ...]:
        """The models that a request for ``name`` may go to: itself, unless it is an alias."""
        record = self.records.get(name)
        if record is None:
            return (name,)
        return tuple(dict.fromkeys(target.model for target in record.alias.stands_for)) or (name,)

    def read(self) -> Callable[[], None]:
        """Read them again if any has changed; what is called takes them up. Raises StateError."""
        revision, found, unreadable = self._store.changed_since(self._revision)
        if found is None:
            return lambda: None
        records = {record.alias.name: record for record in found}
        choices = {name: TargetChoice(record.alias) for name, record in records.items()}

        def take_up() -> None:
            if self._revision >= 0:
                _log.info("aliases_changed", aliases=len(records))
            for name in unreadable:
                _log.error("alias_unreadable", alias=name)
            self._set(revision, records, choices)

        return take_up

    def _set(
        self, revision: int, records: Mapping[str, AliasRecord], choices: Mapping[str, TargetChoice]
    ) -> None:
        self.records, self.choices, self._revision = records, choices, revision
        targets = (target for record in records.values() for target in record.alias.targets)
        self.versioned = frozenset(target.model for target in targets if target.version is not None)
