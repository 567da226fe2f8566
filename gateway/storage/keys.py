"""Client API keys in the store: only their SHA-256, which is enough for keys nobody can guess."""

import hashlib
import secrets
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, Row, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from gateway.domain.quotas import BadQuota, Rates
from gateway.domain.request import Tier
from gateway.domain.residency import Residency, where_of
from gateway.domain.scopes import AdminRole, Scopes, scopes_of
from gateway.storage import schema
from gateway.storage.acts import note_act
from gateway.storage.errors import BadValue, NameTaken, UnknownRecord
from gateway.storage.records import RevisedStore
from gateway.storage.rules import check_models, check_record_name, check_seconds, refusing
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
    """The hash of the secret before the last rotation."""
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


class KeyStore(RevisedStore[KeyRecord]):
    """The client API keys."""

    _table = schema.keys
    _order = (schema.keys.c.created_s, schema.keys.c.name)
    _topic = schema.Topic.KEYS

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
            check_seconds("an API key lasts", life_s, LIFE_S)
        text, key_id = _new_secret(), "key_" + secrets.token_hex(8)
        residency = None if where is None else where.to_dict()
        rights = {
            "scopes": None if scopes is None else scopes.to_dict(),
            "role": None if role is None else role.value,
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
                        residency=residency,
                        expires_s=None if life_s is None else wall_s + life_s,
                        **rights,
                    )
                )
                facts = {"name": name, "tenant": tenant, "where": residency, "life_s": life_s, **rights}
                note_act(connection, "key.create", key=key_id, **facts)
        except IntegrityError as error:
            raise NameTaken(
                f"there is an active key named {name!r}; choose another name, or: trunkline key revoke {name}"
            ) from error
        return text

    def is_empty(self) -> bool:
        """Whether no key was ever made here, not even one that was revoked since."""
        with self._database.read() as connection:
            return connection.execute(select(schema.keys.c.id).limit(1)).first() is None

    def get(self, name: str) -> KeyRecord:
        """The active key of this name (or id). Raises UnknownRecord."""
        with self._database.read() as connection:
            return self._active(connection, name)

    def revoke(self, name: str, wall_s: float) -> KeyRecord:
        """Revoke the active key of this name (or id), both secrets of it while it is being rotated; the key
        as it was. Raises UnknownRecord."""
        with self._database.write() as connection:
            key = self._active(connection, name)
            self._change(connection, key.id, revoked_s=wall_s)
            note_act(connection, "key.revoke", key=key.id, name=key.name, tenant=key.tenant)
        return key

    def rotate(self, name: str, overlap_s: float, wall_s: float) -> tuple[KeyRecord, str]:
        """Give the active key of this name (or id) another secret: the key as it is now, and the secret's
        text, which cannot be had again.

        The secret until now works for ``overlap_s`` seconds more; one from a rotation before that ends at
        once. Everything else of the key stays, its end too. Raises BadValue, and UnknownRecord also for a key
        that has expired.
        """
        if overlap_s != 0:
            check_seconds("a secret that was replaced works for", overlap_s, OVERLAP_S)
        text = _new_secret()
        with self._database.write() as connection:
            key = self._active(connection, name)
            if key.state(wall_s) is not KeyState.ACTIVE:
                raise UnknownRecord(f"the key {key.name!r} has expired; make another: trunkline key create")
            self._change(
                connection,
                key.id,
                digest=digest_of(text),
                hint=text[-_HINT_CHARS:],
                previous_digest=key.digest if overlap_s else None,
                previous_until_s=wall_s + overlap_s if overlap_s else None,
            )
            note_act(connection, "key.rotate", key=key.id, name=key.name, overlap_s=overlap_s)
            return self._active(connection, key.id), text

    def change(self, name: str, changes: Mapping[str, Any]) -> KeyRecord:
        """Give the active key of this name (or id) other rates, by their names in :class:`Rates`, other
        ``routes`` (None: every route) or another ``role`` (None: none); what is not named stays. The key as
        it is then. Raises BadValue or UnknownRecord."""
        with self._database.write() as connection:
            key = self._active(connection, name)
            with refusing(BadQuota):
                given = {each: changes[each] for each in RATES if each in changes}
                rates = replace(key.rates or NO_RATES, **given)
            values = {**asdict(rates), **_access(key.scopes, changes)}
            self._change(connection, key.id, **values)
            note_act(connection, "key.set", key=key.id, name=key.name, **values)
            return self._active(connection, key.id)

    def touch(self, used_s: Mapping[str, float]) -> None:
        """Note when keys were last used, by id: one transaction, and no change of what they may do."""
        with self._database.write_concurrently() as connection:
            for key_id, at_s in sorted(used_s.items()):
                before = schema.keys.c.last_used_s
                connection.execute(
                    update(schema.keys)
                    .where(schema.keys.c.id == key_id, or_(before.is_(None), before < at_s))
                    .values(last_used_s=at_s)
                )

    def _active(self, connection: Connection, name: str) -> KeyRecord:
        """The active key of this name or else id. Raises UnknownRecord."""
        for column in (schema.keys.c.name, schema.keys.c.id):
            key = self._find(connection, column == name, schema.keys.c.revoked_s.is_(None))
            if key is not None:
                return key
        raise UnknownRecord(f"no active key is named {name!r}; see: trunkline key list")

    def _record(self, row: Row[Any]) -> KeyRecord:
        facts = row._asdict()
        where, scopes, role = (facts.pop(name) for name in ("residency", "scopes", "role"))
        rates = Rates(*(facts.pop(name) for name in RATES))
        del facts["revision"]
        return KeyRecord(
            **facts,
            where=None if where is None else where_of(where),
            scopes=None if scopes is None else scopes_of(scopes),
            role=None if role is None else AdminRole(role),
            rates=rates or None,
        )


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


def _new_secret() -> str:
    return PREFIX + secrets.token_urlsafe(_SECRET_BYTES)


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
