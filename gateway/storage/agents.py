"""Agents in the store: who joined, with which key, allowed what, and by which certificates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, delete, func, insert, select, update

from gateway.storage import schema
from gateway.storage.acts import acting, acting_as, note_act
from gateway.storage.database import Database
from gateway.storage.errors import AgentKeyRevoked, BadValue, EnrolmentRefused, NameTaken, UnknownRecord
from gateway.storage.records import RevisedStore
from gateway.storage.rules import check_labels, check_models, check_reason
from gateway.storage.tokens import TokenStore
from shared.identity import NAME_RULE, is_name

CERTIFICATES_KEPT = 4
"""Certificates of one agent that are known at once. A fresh one may be lost on its way, so the ones before it
stay good; more than this an agent gets only by throwing them away."""

RECENT_S = 3600.0
"""Beside those, all are known that were issued in so long: several gateways may each have given the agent one
for the same old one, and it shows only one of them."""

RECENT_KEPT = 64
"""At most so many of them: twice as many as the processes that an agent has sessions with."""


_REVOKED = schema.agents.c.revoked_s.is_not(None)


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
    held_s: float | None = None
    """Since when an operator keeps new work from it; None: it gets work."""
    held_by: str | None = None
    certificates: Mapping[str, float] = field(default_factory=dict, repr=False)
    """Serials (hex) of the certificates issued to it that still count, each with its end."""


@dataclass(frozen=True, slots=True)
class Enrolment:
    """A proven wish to join: the token's holder asks a certificate for this key and name."""

    token_id: str
    name: str
    public_key: bytes
    serial: str
    """The serial number of the certificate that the agent will be sent."""
    expires_s: float


class AgentStore(RevisedStore[AgentRecord]):
    """The agents."""

    _table = schema.agents
    _order = (schema.agents.c.name, _REVOKED, schema.agents.c.id.desc())
    _topic = schema.Topic.AGENTS

    def __init__(self, database: Database, tokens: TokenStore) -> None:
        super().__init__(database)
        self._tokens = tokens

    def enrol(self, enrolment: Enrolment, wall_s: float) -> AgentRecord:
        """Take an agent in, or renew what a key already enrolled under this name may do, in one transaction.

        Counts a use of the token, except when this key already joined with it: then the answer was lost
        on its way, the agent asks again, and what it may serve stays as it was or was set since. Raises
        EnrolmentRefused.
        """
        with self._database.write() as connection:
            token = self._tokens.usable(connection, enrolment.token_id, wall_s)
            known = self._find(connection, schema.agents.c.public_key == enrolment.public_key)
            self._refuse_taken(connection, known, enrolment)
            rights: dict[str, Any] = {}
            if known is None or known.token_id != token.id:
                self._tokens.count_use(connection, token)
                rights = {"models": list(token.models), "labels": dict(token.labels), "token_id": token.id}
            if known is None:
                agent_id = self._insert(connection, enrolment, wall_s, rights)
            else:
                agent_id = known.id
                self._change(connection, agent_id, **rights)
            _add_certificate(connection, agent_id, enrolment.serial, enrolment.expires_s, wall_s)
            with acting_as(f"token:{token.id}"):
                note_act(connection, "agent.join", agent=enrolment.name, serial=enrolment.serial)
            return self._get(connection, agent_id)

    def renew(
        self, agent_id: int, serial: str, expires_s: float, wall_s: float, in_use: str | None = None
    ) -> None:
        """Record one more certificate of an agent. The one with the serial ``in_use`` stays good whatever
        became of those issued since. Raises UnknownRecord if the agent was revoked meanwhile."""
        with self._database.write() as connection:
            if self._find(connection, schema.agents.c.id == agent_id, ~_REVOKED) is None:
                raise UnknownRecord("the agent was revoked")
            _add_certificate(connection, agent_id, serial, expires_s, wall_s, in_use)
            self._change(connection, agent_id)

    def get(self, name: str) -> AgentRecord | None:
        """The active agent of this name."""
        with self._database.read() as connection:
            return self._find_active(connection, name)

    def revoke(self, name: str, reason: str, wall_s: float) -> AgentRecord:
        """Revoke the active agent of this name, its key and its certificates for good; the agent as it was.

        Raises UnknownRecord, BadValue for a reason that is no line of text.
        """
        check_reason(reason)
        with self._database.write() as connection:
            found = self._active(connection, name)
            self._change(connection, found.id, revoked_s=wall_s, revoked_reason=reason)
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
            found = self._active(connection, name)
            if new == name:
                return found
            if self._find_active(connection, new) is not None:
                raise NameTaken(f"another agent is named {new!r}; see: trunkline agents list")
            self._change(connection, found.id, name=new)
            note_act(connection, "agent.rename", agent=name, name=new)
            return self._get(connection, found.id)

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
            found = self._active(connection, name)
            self._change(connection, found.id, **values)
            note_act(connection, "agent.set", agent=name, **values)
            return self._get(connection, found.id)

    def hold(self, name: str, wall_s: float, *, held: bool) -> AgentRecord:
        """Keep new work from the active agent of this name, or no longer; the agent as it is now. It stays so
        under another name, until it is revoked. Raises UnknownRecord."""
        with self._database.write() as connection:
            found = self._active(connection, name)
            if (found.held_s is not None) == held:
                return found
            by = (wall_s, acting()) if held else (None, None)
            self._change(connection, found.id, held_s=by[0], held_by=by[1])
            note_act(connection, "agent.drain" if held else "agent.undrain", agent=name)
            return self._get(connection, found.id)

    def touch(self, names: Sequence[str], wall_s: float) -> None:
        """Note that these agents were seen just now: one transaction, and no change of who they are."""
        agents = schema.agents.c
        mine = select(agents.id).where(agents.name.in_(names), ~_REVOKED).order_by(agents.id)
        with self._database.write_concurrently() as connection:
            # who has locked a row notes the same just now, or revokes the agent
            chosen = agents.id.in_(mine.with_for_update(skip_locked=True))
            connection.execute(update(schema.agents).where(chosen).values(last_seen_s=wall_s))

    def _refuse_taken(self, connection: Connection, known: AgentRecord | None, enrolment: Enrolment) -> None:
        """One key, one name: raises what stands against joining under this name with this key."""
        name = enrolment.name
        if known is not None and known.revoked_s is not None:
            raise AgentKeyRevoked(
                f"this host's key was revoked (as agent {known.name!r}) and cannot come back: "
                "remove its agent key from its state directory, then join with a new token"
            )
        if known is not None and known.name != name:
            raise EnrolmentRefused(
                f"this host's key is enrolled as agent {known.name!r}: use --name {known.name}, or give "
                f"{name!r} a state directory (and so a key) of its own"
            )
        if known is None and self._find_active(connection, name) is not None:
            raise EnrolmentRefused(
                f"another host is enrolled as agent {name!r}: choose another --name (of a gateway: "
                f"uplink.name), or, if this host replaces it, run: trunkline agents revoke {name}"
            )

    def _insert(
        self, connection: Connection, enrolment: Enrolment, wall_s: float, rights: Mapping[str, Any]
    ) -> int:
        """A new agent; its id."""
        inserted = connection.execute(
            insert(schema.agents)
            .values(
                name=enrolment.name,
                public_key=enrolment.public_key,
                joined_s=wall_s,
                revoked_reason="",
                revision=schema.next_revision(connection, self._topic),
                **rights,
            )
            .returning(schema.agents.c.id)
        )
        return int(inserted.scalar_one())

    def _get(self, connection: Connection, agent_id: int) -> AgentRecord:
        (found,) = self._read(connection, schema.agents.c.id == agent_id)
        return found

    def _find_active(self, connection: Connection, name: str) -> AgentRecord | None:
        return self._find(connection, schema.agents.c.name == name, ~_REVOKED)

    def _active(self, connection: Connection, name: str) -> AgentRecord:
        """The active agent of this name. Raises UnknownRecord."""
        found = self._find_active(connection, name)
        if found is None:
            raise UnknownRecord(f"no active agent is named {name!r}; see: trunkline agents list")
        return found

    def _read(
        self,
        connection: Connection,
        *conditions: ColumnElement[bool],
        order: Sequence[ColumnElement[Any]] = (),
    ) -> Sequence[AgentRecord]:
        """The agents that meet the conditions, with their certificates."""
        found = super()._read(connection, *conditions, order=order)
        chosen = select(schema.agents.c.id).where(*conditions)
        certificates = schema.certificates
        serials: dict[int, dict[str, float]] = {agent.id: {} for agent in found}
        for row in connection.execute(select(certificates).where(certificates.c.agent_id.in_(chosen))):
            serials[row.agent_id][row.serial] = row.expires_s
        return [replace(agent, certificates=serials[agent.id]) for agent in found]

    def _record(self, row: Row[Any]) -> AgentRecord:
        facts = row._asdict()
        del facts["revision"]
        return AgentRecord(**{**facts, "models": tuple(row.models)})


def _add_certificate(
    connection: Connection,
    agent_id: int,
    serial: str,
    expires_s: float,
    wall_s: float,
    in_use: str | None = None,
) -> None:
    """Record a certificate; forget those beyond ``CERTIFICATES_KEPT``, but neither recent ones nor the one
    ``in_use``. Those that are over stay till then: where it is the clock that is wrong, they are good when it
    is right again. This one is kept whatever the clock says of it beside the others."""
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
    recent = (
        select(table.c.serial)
        .where(mine, func.abs(table.c.issued_s - wall_s) < RECENT_S)
        .order_by(table.c.issued_s.desc())
        .limit(RECENT_KEPT)
    )
    kept = [*connection.execute(newest).scalars(), *connection.execute(recent).scalars()]
    kept += [] if in_use is None else [in_use]
    connection.execute(delete(table).where(mine, table.c.serial.not_in(kept)))
