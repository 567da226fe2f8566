"""Agents in the store: who joined, with which key, allowed what, and by which certificates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select, update

from gateway.storage import schema
from gateway.storage.acts import acting_as, note_act
from gateway.storage.database import Database
from gateway.storage.errors import (
    AgentKeyRevoked,
    AgentKeyTaken,
    AgentNameTaken,
    BadValue,
    NameTaken,
    UnknownRecord,
)
from gateway.storage.rules import check_labels, check_models, check_reason
from gateway.storage.tokens import TokenRecord, count_use, usable_token
from shared.identity import NAME_RULE, is_name

CERTIFICATES_KEPT = 4
"""Certificates of one agent that are known at once. A fresh one may be lost on its way, so the ones before it
stay good; more than this an agent gets only by throwing them away."""


@dataclass(frozen=True, slots=True)
class AgentRecord:
    """An agent that joined. Times are seconds since 1970."""

    id: int
    name: str
    public_key: bytes
    """Ed25519, raw, 32 bytes."""
    models: tuple[str, ...]
    """Shell patterns of the models it may serve: of the token it joined with, or set since."""
    labels: Mapping[str, str]
    token_id: str
    joined_s: float
    last_seen_s: float | None
    revoked_s: float | None
    revoked_reason: str
    certificates: Mapping[str, float] = field(repr=False)
    """Serials (hex) of the certificates issued to it that still count, each with its end."""


@dataclass(frozen=True, slots=True)
class Enrolment:
    """A proven wish to join: the token's holder asks a certificate for this key and name."""

    token_id: str
    name: str
    public_key: bytes
    serial: str
    """Of the certificate it will be sent."""
    expires_s: float


class AgentStore:
    """The agents. Every method raises StateError when the database fails."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def enrol(self, enrolment: Enrolment, wall_s: float) -> AgentRecord:
        """Take an agent in, or renew what a key already enrolled under this name may do, in one transaction.

        Counts a use of the token, except when this key already joined with it: then the answer was lost
        on its way, the agent asks again, and what it may serve stays as it was or was set since. Raises
        EnrolmentRefused.
        """
        with self._database.write() as connection:
            token = usable_token(connection, enrolment.token_id, wall_s)
            known = _find(connection, schema.agents.c.public_key == enrolment.public_key)
            _refuse_taken(connection, known, enrolment)
            if known is None or known.token_id != token.id:
                count_use(connection, token)
            agent_id = _store(connection, known, token, enrolment, wall_s)
            _add_certificate(connection, agent_id, enrolment.serial, enrolment.expires_s, wall_s)
            with acting_as(f"token:{token.id}"):
                note_act(connection, "agent.join", agent=enrolment.name, serial=enrolment.serial)
            return _load(connection, schema.agents.c.id == agent_id)[0]

    def renew(
        self, agent_id: int, serial: str, expires_s: float, wall_s: float, in_use: str | None = None
    ) -> None:
        """Record one more certificate of an agent. The one with the serial ``in_use`` stays good whatever
        became of those issued since. Raises UnknownRecord if the agent was revoked meanwhile."""
        active = (schema.agents.c.id == agent_id) & schema.agents.c.revoked_s.is_(None)
        with self._database.write() as connection:
            if _find(connection, active) is None:
                raise UnknownRecord("the agent was revoked")
            _add_certificate(connection, agent_id, serial, expires_s, wall_s, in_use)
            _change(connection, agent_id)

    def get(self, name: str) -> AgentRecord | None:
        """The active agent of this name."""
        with self._database.read() as connection:
            found = _load(connection, (schema.agents.c.name == name) & schema.agents.c.revoked_s.is_(None))
        return found[0] if found else None

    def list(self) -> tuple[AgentRecord, ...]:
        """Every agent, revoked ones too, by name, the active one of a name first."""
        with self._database.read() as connection:
            found = _load(connection, schema.agents.c.id.is_not(None))
        return tuple(sorted(found, key=lambda agent: (agent.name, agent.revoked_s is not None, -agent.id)))

    def revoke(self, name: str, reason: str, wall_s: float) -> AgentRecord:
        """Revoke the active agent of this name, its key and its certificates for good; the agent as it was.

        Raises UnknownRecord, BadValue for a reason that is no line of text.
        """
        check_reason(reason)
        with self._database.write() as connection:
            found = _active(connection, name)
            _change(connection, found.id, revoked_s=wall_s, revoked_reason=reason)
            note_act(connection, "agent.revoke", agent=name, reason=reason)
        return found

    def rename(self, name: str, new: str) -> AgentRecord:
        """Give the active agent of this name another one; its key and its certificates stay good. The agent
        as it is now.

        Raises UnknownRecord, BadValue for what cannot be a name, NameTaken.
        """
        if not is_name(new):
            raise BadValue(f"{new!r} cannot name an agent: {NAME_RULE}")
        with self._database.write() as connection:
            found = _active(connection, name)
            if new == name:
                return found
            if _find(connection, (schema.agents.c.name == new) & schema.agents.c.revoked_s.is_(None)):
                raise NameTaken(f"another agent is named {new!r}; see: trunkline agents list")
            _change(connection, found.id, name=new)
            note_act(connection, "agent.rename", agent=name, name=new)
            return _load(connection, schema.agents.c.id == found.id)[0]

    def allow(self, name: str, models: Sequence[str] | None, labels: Mapping[str, str] | None) -> AgentRecord:
        """Set what the active agent of this name may serve, or its labels, or both; None leaves what there
        is. The agent as it is now. Raises UnknownRecord, BadValue."""
        values: dict[str, Any] = {}
        if models is not None:
            check_models(models)
            values["models"] = list(models)
        if labels is not None:
            check_labels(labels)
            values["labels"] = dict(labels)
        with self._database.write() as connection:
            found = _active(connection, name)
            _change(connection, found.id, **values)
            note_act(connection, "agent.set", agent=name, **values)
            return _load(connection, schema.agents.c.id == found.id)[0]

    def touch(self, names: Sequence[str], wall_s: float) -> None:
        """Note that these agents were seen just now: one transaction, and no change of who they are."""
        with self._database.write() as connection:
            for name in names:
                connection.execute(
                    update(schema.agents)
                    .where(schema.agents.c.name == name, schema.agents.c.revoked_s.is_(None))
                    .values(last_seen_s=wall_s)
                )

    def changed_since(self, revision: int) -> tuple[int, Sequence[AgentRecord]]:
        """The present revision and the agents changed after ``revision`` (0: all), in the order of change."""
        with self._database.read() as connection:
            present = schema.read_revision(connection, schema.Topic.AGENTS)
            if present == revision:
                return present, []
            return present, _load(connection, schema.agents.c.revision > revision)


def _refuse_taken(connection: Connection, known: Row[Any] | None, enrolment: Enrolment) -> None:
    """One key, one name: raises what stands against joining under this name with this key."""
    name = enrolment.name
    if known is not None and known.revoked_s is not None:
        raise AgentKeyRevoked(
            f"this host's key was revoked (as agent {known.name!r}) and cannot come back: "
            "remove its agent key from its state directory, then join with a new token"
        )
    if known is not None and known.name != name:
        raise AgentKeyTaken(
            f"this host's key is enrolled as agent {known.name!r}: use --name {known.name}, or give "
            f"{name!r} a state directory (and so a key) of its own"
        )
    active = (schema.agents.c.name == name) & schema.agents.c.revoked_s.is_(None)
    if known is None and _find(connection, active) is not None:
        raise AgentNameTaken(
            f"another host is enrolled as agent {name!r}: choose another --name, or, if this host replaces "
            f"it, run: trunkline agents revoke {name}"
        )


def _store(
    connection: Connection, known: Row[Any] | None, token: TokenRecord, enrolment: Enrolment, wall_s: float
) -> int:
    """Insert or renew the agent's row; its id."""
    values: dict[str, Any] = {"revision": schema.next_revision(connection, schema.Topic.AGENTS)}
    if known is None or known.token_id != token.id:
        values |= {"models": list(token.models), "labels": dict(token.labels), "token_id": token.id}
    if known is not None:
        connection.execute(update(schema.agents).where(schema.agents.c.id == known.id).values(**values))
        return int(known.id)
    inserted = connection.execute(
        insert(schema.agents)
        .values(
            name=enrolment.name,
            public_key=enrolment.public_key,
            joined_s=wall_s,
            revoked_reason="",
            **values,
        )
        .returning(schema.agents.c.id)
    )
    return int(inserted.scalar_one())


def _add_certificate(
    connection: Connection,
    agent_id: int,
    serial: str,
    expires_s: float,
    wall_s: float,
    in_use: str | None = None,
) -> None:
    """Record a certificate; forget those beyond ``CERTIFICATES_KEPT``, but not the one ``in_use``. Those that
    are over stay till then: where it is the clock that is wrong, they are good when it is right again. This
    one is kept whatever the clock says of it beside the others."""
    table = schema.certificates
    mine = table.c.agent_id == agent_id
    connection.execute(
        insert(table).values(serial=serial, agent_id=agent_id, issued_s=wall_s, expires_s=expires_s)
    )
    newest = (
        select(table.c.serial)
        .where(mine)
        .order_by((table.c.serial == serial).desc(), table.c.issued_s.desc())
        .limit(CERTIFICATES_KEPT)
    )
    kept = list(connection.execute(newest).scalars())
    kept += [] if in_use is None else [in_use]
    connection.execute(delete(table).where(mine, table.c.serial.not_in(kept)))


def _change(connection: Connection, agent_id: int, **values: Any) -> None:
    """Set columns of an agent, and have every process read it again."""
    values["revision"] = schema.next_revision(connection, schema.Topic.AGENTS)
    connection.execute(update(schema.agents).where(schema.agents.c.id == agent_id).values(**values))


def _active(connection: Connection, name: str) -> AgentRecord:
    """The active agent of this name. Raises UnknownRecord."""
    found = _load(connection, (schema.agents.c.name == name) & schema.agents.c.revoked_s.is_(None))
    if not found:
        raise UnknownRecord(f"no active agent is named {name!r}; see: trunkline agents list")
    return found[0]


def _find(connection: Connection, condition: Any) -> Row[Any] | None:
    return connection.execute(select(schema.agents).where(condition)).one_or_none()


def _load(connection: Connection, condition: Any) -> list[AgentRecord]:
    """The agents that meet a condition, with their certificates, in the order of their last change."""
    agents = connection.execute(
        select(schema.agents).where(condition).order_by(schema.agents.c.revision)
    ).all()
    chosen = select(schema.agents.c.id).where(condition)
    table = schema.certificates
    serials: dict[int, dict[str, float]] = {row.id: {} for row in agents}
    for row in connection.execute(select(table).where(table.c.agent_id.in_(chosen))):
        serials[row.agent_id][row.serial] = row.expires_s
    return [_record(row, serials[row.id]) for row in agents]


def _record(row: Row[Any], certificates: Mapping[str, float]) -> AgentRecord:
    columns = row._asdict()
    del columns["revision"]
    return AgentRecord(**{**columns, "models": tuple(row.models), "certificates": certificates})
