"""The audit log of a state directory."""

import time

from gateway.observability.audit.acts import take_up
from gateway.observability.audit.files import AuditFiles, Retention
from gateway.observability.audit.segments import DIRECTORY
from gateway.storage import Store


def audit_files(store: Store, keep: Retention | None = None) -> AuditFiles:
    """``keep`` may be left out by those who delete nothing."""
    return AuditFiles(store.state_dir / DIRECTORY, lambda: store.gateway_identity, keep or Retention())


def take_up_acts(store: Store) -> int:
    """Acts just done become lines; how many. Raises StateError: then they wait in the database, and whoever
    writes the log next takes them up."""
    return take_up(audit_files(store), store.acts, time.time()) if store.acts.pending(1) else 0


def trusted_keys(store: Store) -> list[bytes]:
    """Public keys of which one has signed the log: the gateway's of now, and the one that was it last."""
    last = store.acts.signer()
    return [store.gateway_identity.public_key, *([last] if last is not None else [])]
