"""Join tokens in the store: what is kept of each, and counting its uses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, Row, insert, update

from gateway.storage import schema
from gateway.storage.acts import note_act
from gateway.storage.database import Database
from gateway.storage.errors import AmbiguousId, EnrolmentRefused, UnknownRecord
from gateway.storage.identity import IdentityStore
from gateway.storage.records import RecordStore
from gateway.storage.rules import TOKEN_LIFE_S, check_labels, check_models, check_seconds, check_uses
from shared.identity import JoinToken

NOT_MADE_HERE = "this gateway made no such join token; make one with: trunkline token create"

ID_PREFIX_CHARS = 4
"""Least of an id that names a token on the command line."""


class TokenState(StrEnum):
    """Whether a token lets anybody in."""

    ACTIVE = "active"
    USED_UP = "used up"
    EXPIRED = "expired"
    REVOKED = "revoked"


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """What the gateway knows of a join token. Times are seconds since 1970."""

    id: str
    """16 hex digits; not secret."""
    verifier: bytes = field(repr=False)
    created_s: float
    expires_s: float
    uses_allowed: int
    uses: int
    models: tuple[str, ...]
    """Shell patterns of the models that its agents may serve."""
    labels: Mapping[str, str]
    revoked_s: float | None

    def state(self, wall_s: float) -> TokenState:
        """At wall-clock time ``wall_s``."""
        if self.revoked_s is not None:
            return TokenState.REVOKED
        if wall_s >= self.expires_s:
            return TokenState.EXPIRED
        return TokenState.ACTIVE if self.uses < self.uses_allowed else TokenState.USED_UP


class TokenStore(RecordStore[TokenRecord]):
    """The join tokens."""

    _table = schema.tokens
    _order = (schema.tokens.c.created_s, schema.tokens.c.id)

    def __init__(self, database: Database, identity: IdentityStore) -> None:
        super().__init__(database)
        self._identity = identity

    def create(
        self,
        expires_in_s: float,
        uses: int,
        models: Sequence[str],
        labels: Mapping[str, str],
        wall_s: float,
    ) -> tuple[JoinToken, str]:
        """Make a token; it and its text, which cannot be had again. Raises BadValue.

        While the gateway's key before counts for all of the token's life it carries that one's fingerprint:
        agents that know nothing of changing keys can join with it too (PROTOCOL §8.12).
        """
        check_seconds("a join token lasts from", expires_in_s, TOKEN_LIFE_S)
        check_uses(uses)
        check_models(models)
        check_labels(labels)
        token = JoinToken.new(self._identity.fingerprint_until(wall_s + expires_in_s))
        rights = {"models": list(models), "labels": dict(labels)}
        with self._database.write() as connection:
            connection.execute(
                insert(schema.tokens).values(
                    id=token.id_text,
                    verifier=token.verifier(),
                    created_s=wall_s,
                    expires_s=wall_s + expires_in_s,
                    uses_allowed=uses,
                    uses=0,
                    **rights,
                )
            )
            facts = {"uses": uses, "life_s": expires_in_s, **rights}
            note_act(connection, "token.create", token=token.id_text, **facts)
        return token, token.encode()

    def get(self, token_id: str) -> TokenRecord | None:
        """The token with this id."""
        with self._database.read() as connection:
            return self._find(connection, schema.tokens.c.id == token_id)

    def revoke(self, token_id: str, wall_s: float) -> TokenRecord:
        """Revoke a token by its id, the beginning of its id, or its whole text; the token as it was.

        Revoking twice changes nothing. Raises UnknownRecord or AmbiguousId.
        """
        with self._database.write() as connection:
            record = self._find_by_prefix(connection, token_id)
            connection.execute(
                update(schema.tokens)
                .where(schema.tokens.c.id == record.id, schema.tokens.c.revoked_s.is_(None))
                .values(revoked_s=wall_s)
            )
            note_act(connection, "token.revoke", token=record.id)
        return record

    def _find_by_prefix(self, connection: Connection, text: str) -> TokenRecord:
        prefix = JoinToken.decode(text).id_text if text.startswith("tlj_") else text.lower()
        if len(prefix) < ID_PREFIX_CHARS:
            raise UnknownRecord(
                f"{text!r} is too short: give at least {ID_PREFIX_CHARS} characters of the id"
            )
        found = self._read(connection, schema.tokens.c.id.startswith(prefix, autoescape=True))
        if not found:
            raise UnknownRecord(f"no join token {text!r}; see: trunkline token list")
        if len(found) > 1:
            raise AmbiguousId(f"{len(found)} join tokens begin with {text!r}: give more of the id")
        return found[0]

    def usable(self, connection: Connection, token_id: str, wall_s: float) -> TokenRecord:
        """The token, inside a transaction. Raises EnrolmentRefused when it is unknown, revoked or expired."""
        record = self._find(connection, schema.tokens.c.id == token_id)
        if record is None:
            raise EnrolmentRefused(NOT_MADE_HERE)
        if record.revoked_s is not None:
            raise EnrolmentRefused(f"join token {record.id} was revoked; ask for another")
        if wall_s >= record.expires_s:
            raise EnrolmentRefused(
                f"join token {record.id} has expired; make another with: trunkline token create"
            )
        return record

    def count_use(self, connection: Connection, record: TokenRecord) -> None:
        """Take one use. Raises EnrolmentRefused when none is left. The condition is in the statement: two at
        once cannot both pass."""
        tokens = schema.tokens.c
        taken = connection.execute(
            update(schema.tokens)
            .where(tokens.id == record.id, tokens.uses < tokens.uses_allowed)
            .values(uses=tokens.uses + 1)
        )
        if taken.rowcount != 1:
            raise EnrolmentRefused(
                f"join token {record.id} is used up ({record.uses_allowed} of {record.uses_allowed} uses); "
                "make another with: trunkline token create"
            )

    def _record(self, row: Row[Any]) -> TokenRecord:
        return TokenRecord(**{**row._asdict(), "models": tuple(row.models)})
