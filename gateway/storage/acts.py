"""Administrative acts: noted in the transaction that does them, so that there is none without its note.

The notes wait here until the audit log has taken them up (:mod:`gateway.observability.audit`).
"""

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, delete, insert, or_, select, update

from gateway.storage import schema
from gateway.storage.database import Database

_NONCE_BYTES = 8
_SIGNER = "audit log signed by"
_actor: ContextVar[str | None] = ContextVar("actor", default=None)


@dataclass(frozen=True, slots=True)
class AdminAction:
    """What somebody did. No secret is in it."""

    id: str
    """Random; tells acts apart for as long as there are any."""
    at_s: float
    """Seconds since 1970."""
    kind: str
    """``key.create``, ``agent.revoke``, …"""
    who: str
    """``os:NAME`` on the command line, ``key:ID`` on the admin API."""
    what: Mapping[str, Any]
    """Which one, and what about it: names and values as JSON has them."""


@contextlib.contextmanager
def acting_as(who: str) -> Iterator[None]:
    """Acts inside are ``who``'s. It follows into ``asyncio.to_thread``, and into no executor's thread."""
    token = _actor.set(who)
    try:
        yield
    finally:
        _actor.reset(token)


def acting() -> str:
    """Whose the acts are that are done here now."""
    return _actor.get() or process_owner()


def note_act(connection: Connection, kind: str, **what: Any) -> None:
    """Note what this transaction does. ``what`` names its object and holds no secret."""
    connection.execute(
        insert(schema.acts).values(
            id=secrets.token_hex(_NONCE_BYTES),
            at_s=time.time(),
            kind=kind,
            who=acting(),
            what=what,
        )
    )


@cache
def process_owner() -> str:
    """The user of the operating system as whom this process runs, and as whom they called ``sudo``."""
    try:
        import pwd

        name = pwd.getpwuid(os.getuid()).pw_name
    except (ImportError, KeyError):
        name = str(os.getuid()) if hasattr(os, "getuid") else os.environ.get("USERNAME", "unknown")
    before = os.environ.get("SUDO_USER", "")
    who = f"os:{name}" + (f" (sudo by {before[:64]})" if before else "")
    return who.encode(errors="replace").decode()  # a line of the audit log takes nothing but Unicode


CLAIMED_S = 86_400.0
"""An act that another log claimed so long ago and has not taken up is claimed again: that log is gone."""


class AdminActionStore:
    """Acts that the audit log lacks. Every method raises StateError when the database fails."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def note(self, kind: str, **what: Any) -> None:
        """Note an act that changes nothing in the database."""
        with self._database.write() as connection:
            note_act(connection, kind, **what)

    def pending(self, most: int) -> tuple[AdminAction, ...]:
        """The oldest ``most``, in the order in which they were done."""
        return self._read(most)

    def claimed(self, log: str, most: int, *, more: bool) -> tuple[AdminAction, ...]:
        """The oldest ``most`` that the audit log of that name claimed, in the order in which they were done.
        With ``more`` it claims those first that none has; from then on no other takes them up."""
        if more:
            self._claim(log, most)
        return self._read(most, schema.acts.c.claimed_by == log)

    def _claim(self, log: str, most: int) -> None:
        acts = schema.acts.c
        now_s = time.time()
        left = and_(acts.claimed_by != log, acts.claimed_s < now_s - CLAIMED_S)
        free = select(acts.number).where(or_(acts.claimed_by.is_(None), left))
        with self._database.read() as connection:
            if connection.execute(free.limit(1)).first() is None:
                return
        free = free.order_by(acts.number).limit(most).with_for_update(skip_locked=True)
        with self._database.write_concurrently() as connection:
            numbers = [row.number for row in connection.execute(free)]
            claim = update(schema.acts).where(acts.number.in_(numbers))
            connection.execute(claim.values(claimed_by=log, claimed_s=now_s))

    def _read(self, most: int, *which: ColumnElement[bool]) -> tuple[AdminAction, ...]:
        query = select(schema.acts).where(*which).order_by(schema.acts.c.number).limit(most)
        with self._database.read() as connection:
            return tuple(
                AdminAction(row.id, row.at_s, row.kind, row.who, row.what)
                for row in connection.execute(query)
            )

    def forget(self, ids: Collection[str]) -> None:
        """These are in the audit log for good."""
        if ids:
            acts = schema.acts.c
            known = select(acts.number).where(acts.id.in_(ids)).order_by(acts.number)
            with self._database.write_concurrently() as connection:
                found = known.with_for_update(skip_locked=True)
                connection.execute(delete(schema.acts).where(acts.number.in_(found)))

    def signer(self) -> bytes | None:
        """The public key that signed the audit log last, None if none did."""
        query = select(schema.facts.c.value).where(schema.facts.c.name == _SIGNER)
        with self._database.read() as connection:
            value = connection.execute(query).scalar_one_or_none()
        return None if value is None else bytes.fromhex(value)

    def note_signer(self, public_key: bytes) -> None:
        """This one did now, and no other is to be believed."""
        with self._database.write() as connection:
            fact = {"name": _SIGNER, "value": public_key.hex()}
            connection.execute(self._database.upsert(schema.facts), fact)


class ClaimedActions:
    """Acts for one of several audit logs: what it claims, no other takes up, whatever crashes then."""

    def __init__(self, store: AdminActionStore, log: str, owns: Callable[[], bool]) -> None:
        """``log`` names the audit log. While ``owns`` says so it claims what comes."""
        self._store = store
        self._log = log
        self._owns = owns
        self.forget = store.forget
        self.signer = store.signer
        self.note_signer = store.note_signer

    def pending(self, most: int) -> tuple[AdminAction, ...]:
        """See :meth:`AdminActionStore.claimed`. Raises StateError."""
        return self._store.claimed(self._log, most, more=self._owns())
