"""Client API keys in the store: only their SHA-256, which is enough for keys nobody can guess."""

import hashlib
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from gateway.domain.quotas import BadQuota, Rates
from gateway.domain.request import Tier
from gateway.domain.residency import Residency, where_of
from gateway.domain.scopes import AdminRole, Scopes, scopes_of
from gateway.storage import schema
from gateway.storage.acts import note_act
from gateway.storage.database import Database
from gateway.storage.errors import BadValue, NameTaken, UnknownRecord
from gateway.storage.rules import check_models, check_record_name
from shared.protocol.routes import ROUTES

PREFIX = "sk-tl-"
DEFAULT_TENANT = "default"

LIFE_S = 10 * 366 * 86_400.0
"""Longest life that can be said; a key may also have no end."""

OVERLAP_S = 90 * 86_400.0
"""Longest time for which the secret before a rotation still works."""

NO_RATES = Rates()
RATES = ("rpm", "tpm", "concurrency")

_SECRET_BYTES = 32
_HINT_CHARS = 4
_BATCH_ROWS = 5000


class KeyState(StrEnum):
    """Whether a key lets anybody in."""

    ACTIVE = "active"
    EXPIRED = "expired"
    REVOKED = "revoked"


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """What the gateway knows of a client's key. Times are seconds since 1970."""

    id: str
    name: str
    tenant: str
    digest: bytes = field(repr=False)
    """SHA-256 of the key's text."""
    hint: str
    """The key's last four characters, to tell keys apart by eye."""
    created_s: float
    revoked_s: float | None
    where: Residency | None = None
    """Its requests run nowhere else."""
    scopes: Scopes | None = None
    """What it may ask for; None: anything."""
    role: AdminRole | None = None
    """On the admin API; None: nothing."""
    expires_s: float | None = None
    previous_digest: bytes | None = field(default=None, repr=False)
    """Of the secret before the last rotation."""
    previous_until_s: float | None = None
    """When that one ends."""
    last_used_s: float | None = None
    """Written now and then: it may be some seconds old."""
    rates: Rates | None = None
    """How much of it at once; None: as much as it likes."""

    def state(self, wall_s: float) -> KeyState:
        """At wall-clock time ``wall_s``."""
        if self.revoked_s is not None:
            return KeyState.REVOKED
        expired = self.expires_s is not None and wall_s >= self.expires_s
        return KeyState.EXPIRED if expired else KeyState.ACTIVE


def digest_of(text: str) -> bytes:
    """What is stored and looked up of a key. A key has 256 bits of chance, so no salt and no stretching."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


class KeyStore:
    """The client API keys. Every method raises StateError when the database fails."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(
        self,
        name: str,
        tenant: str,
        wall_s: float,
        where: Residency | None = None,
        *,
        scopes: Scopes | None = None,
        role: AdminRole | None = None,
        life_s: float | None = None,
        rates: Rates = NO_RATES,
    ) -> str:
        """Make a key, whose requests run only ``where`` is said; its text, which cannot be had again.

        It may ask for what ``scopes`` say, at the ``rates``, and lasts ``life_s`` seconds; None: for ever.
        Raises BadValue or NameTaken.
        """
        check_record_name("key name", name)
        check_record_name("tenant", tenant)
        check_scopes(scopes)
        if life_s is not None:
            _check_seconds("an API key lasts", life_s, LIFE_S)
        text, key_id = _new_secret(), "key_" + secrets.token_hex(8)
        rights = {
            "where": None if where is None else where.to_dict(),
            "scopes": None if scopes is None else scopes.to_dict(),
            "role": None if role is None else role.value,
            "life_s": life_s,
            **asdict(rates),
        }
        try:
            with self._database.write() as connection:
                connection.execute(
                    insert(schema.keys).values(
                        id=key_id,
                        name=name,
                        tenant=tenant,
                        digest=digest_of(text),
                        hint=text[-_HINT_CHARS:],
                        created_s=wall_s,
                        revision=schema.next_revision(connection, schema.Topic.KEYS),
                        residency=None if where is None else where.to_dict(),
                        scopes=None if scopes is None else scopes.to_dict(),
                        role=None if role is None else role.value,
                        expires_s=None if life_s is None else wall_s + life_s,
                        **asdict(rates),
                    )
                )
                note_act(connection, "key.create", key=key_id, name=name, tenant=tenant, **rights)
        except IntegrityError as error:
            raise NameTaken(
                f"there is an active key named {name!r}; choose another name, or: trunkline key revoke {name}"
            ) from error
        return text

    def list(self) -> tuple[KeyRecord, ...]:
        """Every key, revoked ones too, the oldest first."""
        query = select(schema.keys).order_by(schema.keys.c.created_s, schema.keys.c.name)
        with self._database.read() as connection:
            return tuple(map(_record, connection.execute(query)))

    def is_empty(self) -> bool:
        """Whether no key was ever made here, not even one that was revoked since."""
        with self._database.read() as connection:
            return connection.execute(select(schema.keys.c.id).limit(1)).first() is None

    def get(self, name: str) -> KeyRecord:
        """The active key of this name (or id). Raises UnknownRecord."""
        with self._database.read() as connection:
            return _record(_active(connection, name))

    def revoke(self, name: str, wall_s: float) -> KeyRecord:
        """Revoke the active key of this name (or id), both secrets of it while it is being rotated; the key
        as it was. Raises UnknownRecord."""
        with self._database.write() as connection:
            row = _active(connection, name)
            _change(connection, row.id, revoked_s=wall_s)
            note_act(connection, "key.revoke", key=row.id, name=row.name, tenant=row.tenant)
        return _record(row)

    def rotate(self, name: str, overlap_s: float, wall_s: float) -> tuple[KeyRecord, str]:
        """Give the active key of this name (or id) another secret: the key as it is now, and the secret's
        text, which cannot be had again.

        The secret until now works for ``overlap_s`` seconds more; one from a rotation before that ends at
        once. Everything else of the key stays, its end too. Raises BadValue, and UnknownRecord also for a key
        that has expired.
        """
        if overlap_s != 0:
            _check_seconds("a secret that was replaced works for", overlap_s, OVERLAP_S)
        text = _new_secret()
        with self._database.write() as connection:
            row = _active(connection, name)
            if _record(row).state(wall_s) is not KeyState.ACTIVE:
                raise UnknownRecord(f"the key {row.name!r} has expired; make another: trunkline key create")
            _change(
                connection,
                row.id,
                digest=digest_of(text),
                hint=text[-_HINT_CHARS:],
                previous_digest=row.digest if overlap_s else None,
                previous_until_s=wall_s + overlap_s if overlap_s else None,
            )
            note_act(connection, "key.rotate", key=row.id, name=row.name, overlap_s=overlap_s)
            return _record(_active(connection, row.id)), text

    def change(self, name: str, changes: Mapping[str, Any]) -> KeyRecord:
        """Give the active key of this name (or id) other rates, by their names in :class:`Rates`, other
        ``routes`` (None: every route) or another ``role`` (None: none); what is not named stays. The key as
        it is then. Raises BadValue or UnknownRecord."""
        with self._database.write() as connection:
            row = _active(connection, name)
            before = _record(row).rates or Rates()
            try:
                rates = replace(before, **{name: changes[name] for name in RATES if name in changes})
            except BadQuota as error:
                raise BadValue(str(error)) from error
            access = _access(_record(row).scopes, changes)
            _change(connection, row.id, **asdict(rates), **access)
            note_act(connection, "key.set", key=row.id, name=row.name, **asdict(rates), **access)
            return _record(_active(connection, row.id))

    def touch(self, used_s: Mapping[str, float]) -> None:
        """Note when keys were last used, by id: one transaction, and no change of what they may do."""
        with self._database.write() as connection:
            for key_id, at_s in used_s.items():
                before = schema.keys.c.last_used_s
                connection.execute(
                    update(schema.keys)
                    .where(schema.keys.c.id == key_id, or_(before.is_(None), before < at_s))
                    .values(last_used_s=at_s)
                )

    def changed_since(self, revision: int) -> tuple[int, Sequence[KeyRecord]]:
        """The present revision and the keys changed after ``revision`` (0: all), in the order of change."""
        with self._database.read() as connection:
            present = schema.read_revision(connection, schema.Topic.KEYS)
            if present == revision:
                return present, []
            query = (
                select(schema.keys)
                .where(schema.keys.c.revision > revision)
                .order_by(schema.keys.c.revision)
                .execution_options(yield_per=_BATCH_ROWS)
            )
            return present, [_record(row) for row in connection.execute(query)]


def check_scopes(scopes: Scopes | None) -> None:
    """Raises BadValue for patterns that fit no model, and for routes and tiers that there are not."""
    if scopes is None:
        return
    if scopes.models is not None:
        check_models(scopes.models.patterns)
    _check_known("route", scopes.routes, frozenset(ROUTES))
    _check_known("tier", scopes.tiers, frozenset(Tier))


def _check_known(what: str, given: Collection[str] | None, known: frozenset[str]) -> None:
    if given is None:
        return
    unknown = sorted(set(given) - known)
    if unknown or not given:
        said = f"there is no {what} {unknown[0]!r}" if unknown else f"no {what} is named"
        raise BadValue(f"{said}; {what}s are {', '.join(sorted(known))}")


def _check_seconds(what: str, seconds: float, most_s: float) -> None:
    if not 1 <= seconds <= most_s:
        raise BadValue(f"{what} 1 second to {most_s / 86_400:g} days, not {seconds:g} s")


def _new_secret() -> str:
    return PREFIX + secrets.token_urlsafe(_SECRET_BYTES)


def _active(connection: Connection, name: str) -> Row[Any]:
    """The active key of this name or else id. Raises UnknownRecord."""
    names: tuple[ColumnElement[bool], ...] = (schema.keys.c.name == name, schema.keys.c.id == name)
    for named in names:
        query = select(schema.keys).where(named, schema.keys.c.revoked_s.is_(None))
        row = connection.execute(query).one_or_none()
        if row is not None:
            return row
    raise UnknownRecord(f"no active key is named {name!r}; see: trunkline key list")


def _access(scopes: Scopes | None, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of what else is changed. Raises BadValue."""
    columns: dict[str, Any] = {}
    if "role" in changes:
        role = changes["role"]
        if role is not None and role not in tuple(AdminRole):
            raise BadValue(f"the role {role!r} is none of {', '.join(AdminRole)}")
        columns["role"] = None if role is None else AdminRole(role).value
    if "routes" in changes:
        found = {} if scopes is None else scopes.to_dict()
        wanted = scopes_of({**found, "routes": changes["routes"]})
        check_scopes(wanted)
        columns["scopes"] = None if wanted is None else wanted.to_dict()
    return columns


def _change(connection: Connection, key_id: str, **values: Any) -> None:
    revision = schema.next_revision(connection, schema.Topic.KEYS)
    connection.execute(
        update(schema.keys).where(schema.keys.c.id == key_id).values(revision=revision, **values)
    )


def _record(row: Row[Any]) -> KeyRecord:
    return KeyRecord(
        id=row.id,
        name=row.name,
        tenant=row.tenant,
        digest=row.digest,
        hint=row.hint,
        created_s=row.created_s,
        revoked_s=row.revoked_s,
        where=None if row.residency is None else where_of(row.residency),
        scopes=None if row.scopes is None else scopes_of(row.scopes),
        role=None if row.role is None else AdminRole(row.role),
        expires_s=row.expires_s,
        previous_digest=row.previous_digest,
        previous_until_s=row.previous_until_s,
        last_used_s=row.last_used_s,
        rates=Rates(row.rpm, row.tpm, row.concurrency) or None,
    )
