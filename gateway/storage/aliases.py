"""Aliases in the store, and what they were before: every change is kept for a while and can be taken back."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select

from gateway.domain.aliases import (
    Alias,
    AliasMirror,
    AliasTarget,
    BadAlias,
    alias_of,
    check_alias,
    check_name,
    check_together,
)
from gateway.storage import schema
from gateway.storage.acts import note_act
from gateway.storage.errors import BadValue, UnknownRecord
from gateway.storage.records import RecordStore
from gateway.storage.rules import refusing

MOST_ALIASES = 256
CHANGES = 20
"""Kept of each alias, the latest."""

MOST_CHANGES = 2 * MOST_ALIASES * CHANGES
"""Kept of all, those of aliases that were removed too."""


@dataclass(frozen=True, slots=True)
class AliasRecord:
    """An alias as it is now. Times are seconds since 1970."""

    alias: Alias
    created_s: float
    changed_s: float


@dataclass(frozen=True, slots=True)
class AliasEvent:
    """One change. ``what`` is the command that made it; ``alias`` what it was from then on, None: no more."""

    id: int
    name: str
    at_s: float
    what: str
    alias: Alias | None


class AliasStore(RecordStore[AliasRecord]):
    """The aliases. Methods that change something raise BadValue for what cannot be, and have changed nothing
    then; a list raises it for an alias that a later version wrote."""

    _table = schema.aliases
    _order = (schema.aliases.c.name,)

    def changed_since(self, revision: int) -> tuple[int, Sequence[AliasRecord] | None, Sequence[str]]:
        """The present revision; every alias there is if it is another than ``revision``, else None; and the
        names of those that cannot be read."""
        with self._database.read() as connection:
            found_revision = schema.read_revision(connection, schema.Topic.ALIASES)
            present, _ = self._database.since(revision, found_revision)
            if present == revision:
                return present, None, ()
            found: list[AliasRecord] = []
            unreadable: list[str] = []
            for row in connection.execute(select(schema.aliases).order_by(schema.aliases.c.name)):
                try:
                    found.append(self._record(row))
                except BadValue:
                    unreadable.append(row.name)
            return present, found, tuple(unreadable)

    def history(self, name: str) -> tuple[AliasEvent, ...]:
        """The latest changes of ``name``, the oldest first; none when nothing is known of it."""
        with self._database.read() as connection:
            return _changes(connection, name)

    def set_targets(
        self,
        name: str,
        targets: tuple[AliasTarget, ...],
        wall_s: float,
        *,
        sticky: bool | None = None,
        what: str = "set",
    ) -> Alias:
        """Have ``name`` stand for these; the alias as it is then. ``sticky`` None leaves that as it is."""

        def edit(_: Connection, before: Alias) -> Alias:
            return replace(before, targets=targets, sticky=before.sticky if sticky is None else sticky)

        return self._change(name, what, wall_s, edit)

    def set_mirror(self, name: str, mirror: AliasMirror | None, wall_s: float) -> Alias:
        """Send a share of the requests for ``name`` to a shadow, too; None: no more."""
        return self._change(name, "mirror", wall_s, lambda _, before: replace(before, mirror=mirror))

    def set_fallback(self, name: str, fallback: tuple[AliasTarget, ...], wall_s: float) -> Alias:
        """What may answer instead of ``name``; nothing: ()."""
        return self._change(name, "fallback", wall_s, lambda _, before: replace(before, fallback=fallback))

    def rollback(self, name: str, wall_s: float, to: int | None = None) -> Alias:
        """Have ``name`` stand for what it stood for before, or after the change ``to``. Mirror and fallback
        stay. Raises UnknownRecord."""

        def edit(connection: Connection, before: Alias) -> Alias:
            then = _before(_changes(connection, name), before, to)
            return replace(then if before.empty else before, targets=then.targets, sticky=then.sticky)

        return self._change(name, "rollback", wall_s, edit)

    def remove(self, name: str, wall_s: float) -> Alias:
        """Forget ``name``; what it was. Its history stays. Raises UnknownRecord."""
        with self._database.write() as connection:
            known = self._find(connection, schema.aliases.c.name == name)
            if known is None:
                raise UnknownRecord(f"there is no alias {name!r}; see: trunkline alias list")
            connection.execute(delete(schema.aliases).where(schema.aliases.c.name == name))
            _note(connection, name, "remove", wall_s, None)
        return known.alias

    def _change(
        self, name: str, what: str, wall_s: float, edit: Callable[[Connection, Alias], Alias]
    ) -> Alias:
        """Make of an alias, or of one that stands for nothing yet, what ``edit`` says."""
        with self._database.write() as connection:
            with refusing(BadAlias):
                check_name(name)
                known = {record.alias.name: record.alias for record in self._read(connection)}
                before = known.get(name, Alias(name))
                after = edit(connection, before)
                check_alias(after)
                check_together(known, after)
            if after == before:
                return after
            if not after.empty and name not in known and len(known) >= MOST_ALIASES:
                raise BadValue(f"there are {MOST_ALIASES} aliases, which is all that are allowed")
            if after.empty:
                connection.execute(delete(schema.aliases).where(schema.aliases.c.name == name))
            else:
                row = {"name": name, "definition": after.to_dict(), "created_s": wall_s, "changed_s": wall_s}
                connection.execute(self._database.upsert(schema.aliases, keep=("created_s",)), row)
            _note(connection, name, what, wall_s, after)
        return after

    def _record(self, row: Row[Any]) -> AliasRecord:
        alias = _alias(row.name, row.definition)
        assert alias is not None
        return AliasRecord(alias, row.created_s, row.changed_s)


def _note(connection: Connection, name: str, what: str, wall_s: float, alias: Alias | None) -> None:
    """Write the change down, forget the oldest ones, and let readers know."""
    table = schema.alias_changes
    definition = None if alias is None or alias.empty else alias.to_dict()
    connection.execute(insert(table).values(name=name, at_s=wall_s, what=what, definition=definition))
    for of, most in ((table.c.name == name, CHANGES), (table.c.id.is_not(None), MOST_CHANGES)):
        kept = select(table.c.id).where(of).order_by(table.c.id.desc()).limit(most)
        connection.execute(delete(table).where(of, table.c.id.not_in(kept)))
    schema.next_revision(connection, schema.Topic.ALIASES)
    note_act(connection, f"alias.{what}", alias=name, **(definition or {}))


def _before(changes: Sequence[AliasEvent], now: Alias, to: int | None) -> Alias:
    """What there is to go back to. Raises UnknownRecord."""
    if to is not None:
        for change in changes:
            if change.id == to and change.alias is not None and change.alias.targets:
                return change.alias
        raise UnknownRecord(
            f"{now.name!r} has no change {to} after which it stood for anything; "
            f"see: trunkline alias history {now.name}"
        )
    for change in reversed(changes):
        then = change.alias
        if then is not None and then.targets and (then.targets, then.sticky) != (now.targets, now.sticky):
            return then
    raise UnknownRecord(
        f"nothing is known of what {now.name!r} stood for before; "
        f"say what it shall stand for: trunkline alias switch {now.name} MODEL[@VERSION]"
    )


def _changes(connection: Connection, name: str) -> tuple[AliasEvent, ...]:
    table = schema.alias_changes
    rows = connection.execute(select(table).where(table.c.name == name).order_by(table.c.id)).all()
    return tuple(
        AliasEvent(row.id, row.name, row.at_s, row.what, _alias(name, row.definition)) for row in rows
    )


def _alias(name: str, definition: Mapping[str, Any] | None) -> Alias | None:
    """Raises BadValue."""
    with refusing(BadAlias):
        return None if definition is None else alias_of(name, definition)
