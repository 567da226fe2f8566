"""What signs the webhooks of a tenant: made here, shown once, kept encrypted."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from gateway.domain.webhooks import new_webhook_secret
from gateway.storage import schema
from gateway.storage.acts import note_act
from gateway.storage.database import Database
from gateway.storage.errors import NameTaken, UnknownRecord
from gateway.storage.rules import check_record_name, check_seconds
from gateway.storage.secret_box import SecretBox

OPERATOR = "*"
"""In a tenant's place: whose secret signs what is sent to the operator's own webhook."""

OVERLAP_S = 90 * 86_400.0
"""Longest time for which the secret before a rotation signs, too."""


@dataclass(frozen=True, slots=True)
class WebhookSecretRecord:
    """That there is a secret. Times are seconds since 1970."""

    tenant: str
    created_s: float
    rotated_s: float | None
    previous_until_s: float | None
    """Until when the secret before signs, too."""


class WebhookSecretStore:
    """Every method raises StateError when the database fails, or the key that encrypts."""

    _table = schema.webhook_secrets

    def __init__(self, database: Database, box: SecretBox) -> None:
        self._database = database
        self._box = box

    def create(self, tenant: str, now_s: float) -> str:
        """Make a tenant's secret; its text, which cannot be had again. Raises BadValue, NameTaken."""
        if tenant != OPERATOR:
            check_record_name("tenant", tenant)
        text = new_webhook_secret()
        values = {"tenant": tenant, "secret": self._box.seal(tenant, text), "created_s": now_s}
        try:
            with self._database.write() as connection:
                connection.execute(insert(self._table).values(values))
                note_act(connection, "webhook_secret.create", tenant=tenant)
        except IntegrityError as error:
            raise NameTaken(
                f"{tenant!r} has a webhook secret; replace it with: trunkline webhook secret rotate {tenant}"
            ) from error
        return text

    def rotate(self, tenant: str, overlap_s: float, now_s: float) -> tuple[WebhookSecretRecord, str]:
        """Give a tenant another secret; its text, which cannot be had again. The one until now signs, too,
        for ``overlap_s`` seconds. Raises BadValue, UnknownRecord."""
        if overlap_s != 0:
            check_seconds("a secret that was replaced works for", overlap_s, OVERLAP_S)
        text = new_webhook_secret()
        sealed = self._box.seal(tenant, text)
        with self._database.write() as connection:
            row = self._get(connection, tenant)
            values = {
                "secret": sealed,
                "rotated_s": now_s,
                "previous": row.secret if overlap_s else None,
                "previous_until_s": now_s + overlap_s if overlap_s else None,
            }
            connection.execute(update(self._table).where(self._table.c.tenant == tenant).values(values))
            note_act(connection, "webhook_secret.rotate", tenant=tenant, overlap_s=overlap_s)
            return _record(self._get(connection, tenant)), text

    def remove(self, tenant: str) -> None:
        """Nothing is signed for the tenant any more, and so nothing sent. Raises UnknownRecord."""
        with self._database.write() as connection:
            self._get(connection, tenant)
            connection.execute(delete(self._table).where(self._table.c.tenant == tenant))
            note_act(connection, "webhook_secret.remove", tenant=tenant)

    def list(self) -> tuple[WebhookSecretRecord, ...]:
        """By tenant."""
        with self._database.read() as connection:
            rows = connection.execute(select(self._table).order_by(self._table.c.tenant))
            return tuple(_record(row) for row in rows)

    def get(self, tenant: str) -> WebhookSecretRecord:
        """Raises UnknownRecord."""
        with self._database.read() as connection:
            return _record(self._get(connection, tenant))

    def signable(self, tenant: str) -> bool:
        """Whether the tenant has a secret."""
        query = select(self._table.c.tenant).where(self._table.c.tenant == tenant)
        with self._database.read() as connection:
            return connection.execute(query).first() is not None

    def signers(self, tenant: str, now_s: float) -> tuple[str, ...]:
        """The secrets that sign at a time, the newest first; none where the tenant has none."""
        with self._database.read() as connection:
            row = connection.execute(select(self._table).where(self._table.c.tenant == tenant)).first()
        if row is None:
            return ()
        both = row.previous is not None and now_s < (row.previous_until_s or 0.0)
        return tuple(self._box.read(tenant, each) for each in (row.secret, *([row.previous] if both else [])))

    def _get(self, connection: Connection, tenant: str) -> Row[Any]:
        row = connection.execute(select(self._table).where(self._table.c.tenant == tenant)).first()
        if row is None:
            raise UnknownRecord(
                f"{tenant!r} has no webhook secret; make one with: trunkline webhook secret create {tenant}"
            )
        return row


def _record(row: Row[Any]) -> WebhookSecretRecord:
    return WebhookSecretRecord(row.tenant, row.created_s, row.rotated_s, row.previous_until_s)
