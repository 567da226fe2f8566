"""Moves administrative acts into the audit log from the database, where they are noted as they are done."""

import contextlib
import time
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from gateway.observability.audit.files import AuditFiles, Retention
from gateway.observability.audit.records import RESERVED, AuditEntry, ChainHead
from gateway.observability.audit.segments import DIRECTORY
from gateway.storage import Store
from gateway.storage.acts import AdminAction
from gateway.storage.errors import StateError

MOST_ACTS = 500
"""Taken up at a time."""


class AdminActionSource(Protocol):
    """:class:`gateway.storage.acts.AdminActionStore`."""

    def pending(self, most: int, /) -> tuple[AdminAction, ...] | None:
        """The oldest; None: the database was not asked, as it most likely has none."""
        ...

    def forget(self, ids: Collection[str], /) -> None: ...
    def signer(self) -> bytes | None: ...
    def note_signer(self, public_key: bytes, /) -> None: ...


def entry_of(act: AdminAction) -> AuditEntry:
    """The line that an act becomes."""
    what = {name: value for name, value in act.what.items() if name not in (*RESERVED, "who", "act")}
    return AuditEntry(act.at_s, act.kind, {"who": act.who, **what, "act": act.id})


def append_entries(
    files: AuditFiles,
    acts: AdminActionSource,
    wall_s: float,
    entries: Sequence[AuditEntry | bytes] = (),
    appended: Callable[[ChainHead], None] = lambda head: None,
    rest: Callable[[], None] = lambda: None,
) -> int:
    """Append the acts that wait, once each whatever crashes, then ``entries``; how many lines that were.
    ``appended`` hears of the new head where there are any; ``rest`` is called between pieces of the work.

    Raises StateError, and has appended nothing then. Where only the database fails, ``entries`` are appended.
    """
    with files.held(wall_s, lambda: _signers(acts)) as appender:
        rest()
        waiting: tuple[AdminAction, ...] | None = None
        try:
            waiting = acts.pending(MOST_ACTS)
        except StateError:
            if not entries:
                raise
        taken = appender.head.taken
        fresh = [act for act in waiting or () if act.id not in taken]
        if fresh or entries:
            still = taken if waiting is None else [act.id for act in waiting]
            rest()
            appended(appender.append([*map(entry_of, fresh), *entries], wall_s, still, rest))
            signed_by = appender.signer.public_key
    rest()
    with contextlib.suppress(StateError):  # they are known by their ids when they are found again
        acts.forget([act.id for act in waiting or ()])
        if (fresh or entries) and signed_by != acts.signer():
            acts.note_signer(signed_by)
    return len(fresh) + len(entries)


def prune(files: AuditFiles, acts: AdminActionSource, wall_s: float) -> list[str]:
    """Delete segments that are to be kept no longer; their names. Raises StateError."""
    with files.held(wall_s, lambda: _signers(acts)) as appender:
        return appender.prune(wall_s)


def _signers(acts: AdminActionSource) -> tuple[bytes, ...]:
    try:
        signer = acts.signer()
    except StateError:
        return ()
    return () if signer is None else (signer,)


def audit_files(store: Store, keep: Retention | None = None) -> AuditFiles:
    """``keep`` may be left out by those who delete nothing."""
    return AuditFiles(store.state_dir / DIRECTORY, lambda: store.gateway_identity, keep or Retention())


def append_pending_acts(store: Store) -> int:
    """Acts just done become lines; how many. Raises StateError: then they wait in the database, and whoever
    writes the log next takes them up. Where several gateways have the store, that is the one that owns it."""
    if store.is_shared:
        return 0
    return append_entries(audit_files(store), store.acts, time.time()) if store.acts.pending(1) else 0


def trusted_keys(store: Store) -> list[bytes]:
    """Public keys of which one has signed the log: the gateway's of now, and the one that was it last."""
    last = store.acts.signer()
    return [store.gateway_identity.public_key, *([last] if last is not None else [])]
