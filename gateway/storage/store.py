"""The durable state of a gateway: one directory with one key and one database."""

import contextlib
import os
import time
from pathlib import Path

from gateway.domain.state_dir import DATABASE_NAME
from gateway.storage.acts import AdminActionStore
from gateway.storage.agents import AgentStore
from gateway.storage.aliases import AliasStore
from gateway.storage.backup import Backup
from gateway.storage.database import BUSY_TIMEOUT_S, Database
from gateway.storage.errors import StateCorrupt, StateMissing, StateUnwritable
from gateway.storage.identity import IdentityStore
from gateway.storage.keys import KeyStore
from gateway.storage.limits import LimitStore
from gateway.storage.locks import PID_NAME, Holding, ServerLock, running_gateway
from gateway.storage.sqlite import SqliteDatabase, backup_path, recover, restoring_path
from gateway.storage.tokens import TokenStore
from gateway.storage.usage import ModelStore, UsageStore
from shared.identity import GatewayIdentity

LOCK_NAME = f"{DATABASE_NAME}.lock"


class Store:
    """Opened by the gateway and by each command, at the same time and in any order.

    ``tokens``, ``keys``, ``agents``, ``aliases``, ``models``, ``usage``, ``limits`` and ``acts`` may be
    used from several threads. What writes waits for the disk and, at times, for another process: call it from
    a worker thread in a running gateway.
    """

    def __init__(self, state_dir: Path, database: Database, identity: IdentityStore) -> None:
        self.state_dir = state_dir
        self._database = database
        self._open = contextlib.ExitStack()
        """Closes the database, then lets go of the locks."""
        self._serves = False
        self.changes = database.changes
        """Tells whether anybody, in any process, has changed the state."""
        self.identity = identity
        self.tokens = TokenStore(database, identity)
        self.keys = KeyStore(database)
        self.agents = AgentStore(database, self.tokens)
        self.aliases = AliasStore(database)
        self.models = ModelStore(database)
        self.usage = UsageStore(database)
        self.limits = LimitStore(database)
        self.acts = AdminActionStore(database)
        self.backup = Backup(database)

    @classmethod
    def open(cls, state_dir: Path, *, create: bool = True, serve: bool = False) -> "Store":
        """Open the state in ``state_dir``; make it (directory 0700, files 0600) where there is none.

        With ``create`` False a missing state is StateMissing; so is one whose database was deleted,
        whatever ``create`` says. With ``serve``, which is the gateway's, no other gateway may run on it, and
        the backup takes the place of a damaged or missing database. Raises StateError.
        """
        path = state_dir / DATABASE_NAME
        if not serve and not _is_there(path):
            _refuse_missing(state_dir, create=create)
        _make_directory(state_dir)
        with contextlib.ExitStack() as locks:
            if serve:
                locks.callback(ServerLock(state_dir).close)
            holding = Holding(state_dir / LOCK_NAME)
            locks.callback(holding.close)
            holding.share(BUSY_TIMEOUT_S)
            if serve:
                recover(path, holding)
            elif restoring_path(path).exists():
                raise StateCorrupt(
                    f"{path} is damaged and half restored: start the gateway, which goes on with it"
                )
            database = SqliteDatabase(path)
            locks.callback(database.close)
            store = cls(state_dir, database, IdentityStore(database, state_dir))
            _give_to_owner(state_dir)
            if serve:
                store._serves = True
                database.hold_open()
                database.changes.start_polling()
            store._open = locks.pop_all()
        return store

    @property
    def gateway_identity(self) -> GatewayIdentity:
        """The gateway's key of now. Raises StateError."""
        return self.identity.keys.current

    def close(self) -> None:
        """Close the database. Idempotent.

        Where a gateway runs on the state, what was changed counts there when this returns.
        """
        wait_s = 0.0 if self._serves else self.changes.unsettled_s()
        if wait_s > 0 and running_gateway(self.state_dir) is not None:
            time.sleep(wait_s)
        self._open.close()

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _refuse_missing(state_dir: Path, *, create: bool) -> None:
    """Raises StateMissing unless there never was a state here and one is to be made."""
    path = state_dir / DATABASE_NAME
    running = running_gateway(state_dir)
    if running is not None:
        raise StateMissing(
            f"{path} was deleted while a gateway runs on it ({running}): stop that and start it again, it "
            f"goes on from {path.name}.bak"
        )
    if restoring_path(path).exists():
        return  # which is refused, too, once it is sure that nobody is at it
    if backup_path(path).exists():
        raise StateMissing(
            f"{path} is missing: start the gateway, which goes on from {path.name}.bak; to begin anew, move "
            "that away, too"
        )
    if not create:
        raise StateMissing(
            f"there is no gateway state in {state_dir}: give the --state of the gateway, or make a first "
            "join token with: trunkline token create"
        )


def _is_there(path: Path) -> bool:
    """Raises StateUnwritable where it cannot be looked, as by another user."""
    try:
        return path.exists()
    except OSError as error:
        raise StateUnwritable.opening(path, error) from error


def _make_directory(state_dir: Path) -> None:
    try:
        state_dir.parent.mkdir(parents=True, exist_ok=True)
        state_dir.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise StateUnwritable(
            f"cannot make the state directory {state_dir} ({error.strerror}): give another with --state"
        ) from error


def _give_to_owner(state_dir: Path) -> None:
    """What root makes in another's state directory is given to that other: the gateway must open it. A link
    that lies there is nobody's way to what it leads to."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return
    owner = state_dir.stat()
    names = ("gateway*.key", f"{DATABASE_NAME}*", PID_NAME)
    for path in (found for name in names for found in state_dir.glob(name)):
        with contextlib.suppress(FileNotFoundError):
            if path.lstat().st_uid != owner.st_uid:
                os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
