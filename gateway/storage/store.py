"""The durable state of a gateway: one directory with one key and one database; or, with other gateways, one
database on a server, with the key wrapped in it."""

import contextlib
import os
import time
from pathlib import Path

from gateway.domain.state_dir import ADDRESS_NAME, DATABASE_NAME, PID_NAME
from gateway.domain.store_address import StoreAddress
from gateway.storage.acts import AdminActionStore
from gateway.storage.address_file import note_address, noted_address
from gateway.storage.agents import AgentStore
from gateway.storage.aliases import AliasStore
from gateway.storage.audit_heads import AuditHeadStore
from gateway.storage.backup import Backup
from gateway.storage.batches import BatchStore
from gateway.storage.database import BUSY_TIMEOUT_S, Database
from gateway.storage.errors import StateCorrupt, StateError, StateMissing, StateUnwritable
from gateway.storage.files import FileStore
from gateway.storage.identity import IdentityStore
from gateway.storage.jobs import JobClaims, JobStore
from gateway.storage.key_files import GatewayKeyFiles
from gateway.storage.keys import KeyStore
from gateway.storage.limits import LimitStore
from gateway.storage.locks import Holding, ServerLock, running_gateway
from gateway.storage.ownership import OwnershipStore
from gateway.storage.process_name import PROCESS_NAME, keep_process_name, kept_process_name
from gateway.storage.processes import ProcessStore
from gateway.storage.queue_jobs import QueueJobStore
from gateway.storage.scaling_history import ScalingHistoryStore
from gateway.storage.secret_box import SecretBox
from gateway.storage.sqlite import SqliteDatabase, backup_path, recover, restoring_path
from gateway.storage.tokens import TokenStore
from gateway.storage.uploads import UploadStore
from gateway.storage.usage import ModelStore, UsageStore
from gateway.storage.webhooks.outbox import WebhookOutbox
from gateway.storage.webhooks.secrets import WebhookSecretStore
from gateway.storage.wrapped_keys import CLUSTER_KEY_NAME, WrappedGatewayKeys
from shared.identity import GatewayIdentity

LOCK_NAME = f"{DATABASE_NAME}.lock"


class Store:
    """Opened by the gateway and by each command, at the same time and in any order.

    ``tokens``, ``keys``, ``agents``, ``aliases``, ``models``, ``usage``, ``limits`` and ``acts`` may be
    used from several threads. What writes waits for the disk and, at times, for another process: call it from
    a worker thread in a running gateway.
    """

    def __init__(
        self, state_dir: Path, database: Database, identity: IdentityStore, box: SecretBox | None = None
    ) -> None:
        """``box`` encrypts secrets; None: with a key in the state directory, made when it is needed."""
        self.state_dir = state_dir
        self._database = database
        self.address: StoreAddress | None = None
        """Of the server that has the database; None: it is a file in the state directory."""
        self.process_name: str | None = None
        """Tells the gateway of this state directory from others with the same store, and its audit log from
        theirs; None: there are no others, or no gateway has run here."""
        self.member_key: bytes | None = None
        """By which gateways with the same store know each other; None: there are no others, or this is a
        command's store."""
        self._open = contextlib.ExitStack()
        """Closes the database, then lets go of the locks."""
        self._serves = self._locked = False
        self.database = database
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
        self.audit_heads = AuditHeadStore(database)
        self.scaling_history = ScalingHistoryStore(database)
        self.processes = ProcessStore(database)
        self.ownership = OwnershipStore(database)
        self.files = FileStore(database)
        self.uploads = UploadStore(database, self.files)
        self.jobs, self.job_claims = JobStore(database), JobClaims(database)
        self.job_notices = database.job_notices
        self.queue_jobs = QueueJobStore(database)
        self.webhooks = WebhookOutbox(database)
        box = box or SecretBox(state_dir / CLUSTER_KEY_NAME, lambda: give_to_owner(state_dir))
        self.webhook_secrets = WebhookSecretStore(database, box)
        self.batches = BatchStore(database, self.jobs)
        self.backup = Backup(database)
        self.makes_backups = database.makes_backups
        """Whether ``backup`` can; else whoever runs the database's server does."""

    @property
    def audit_chain(self) -> str:
        """What the store calls the audit log in this state directory."""
        return self.process_name or "gateway"

    @property
    def is_shared(self) -> bool:
        """Whether several gateway processes may have it open at once."""
        return self.address is not None or self._locked

    @classmethod
    def open(
        cls,
        state_dir: Path,
        *,
        create: bool = True,
        serve: bool = False,
        locked: bool = False,
        address: StoreAddress | None = None,
    ) -> "Store":
        """Open the state in ``state_dir``; make it (directory 0700, files 0600) where there is none. With an
        ``address`` the database is on a server, and the directory holds only what is of this host.

        With ``create`` False a missing state is StateMissing; so is one whose database was deleted,
        whatever ``create`` says. With ``serve``, which is the gateway's, no other gateway may run on the
        directory, and the backup takes the place of a damaged or missing database there; ``locked`` says that
        a supervisor sees to the former. A command finds the address that the gateway has noted in the
        directory. Raises StateError.
        """
        if address is None and (noted := noted_address(state_dir)) is not None:
            if serve:
                raise StateError(
                    f"the gateway of {state_dir} has its store in {noted}: give it with --store; to begin "
                    f"anew with files, remove {state_dir / ADDRESS_NAME}"
                )
            address = noted
        with contextlib.ExitStack() as opened:
            if address is None:
                store = cls._open_files(state_dir, opened, create=create, serve=serve, locked=locked)
            else:
                store = cls._open_server(
                    state_dir, address, opened, create=create, serve=serve, locked=locked
                )
            if serve:
                store._serves, store._locked = True, locked
                store._database.hold_open()
                store._database.changes.start_polling()
            store._open = opened.pop_all()
        return store

    @classmethod
    def _open_files(
        cls, state_dir: Path, opened: contextlib.ExitStack, *, create: bool, serve: bool, locked: bool
    ) -> "Store":
        path = state_dir / DATABASE_NAME
        if not serve and not _is_there(path):
            _refuse_missing(state_dir, create=create)
        make_directory(state_dir)
        if serve and not locked:
            opened.callback(ServerLock(state_dir).close)
        holding = Holding(state_dir / LOCK_NAME)
        opened.callback(holding.close)
        holding.share(BUSY_TIMEOUT_S)
        if serve:
            recover(path, holding)
        elif restoring_path(path).exists():
            raise StateCorrupt(
                f"{path} is damaged and half restored: start the gateway, which goes on with it"
            )
        database = SqliteDatabase(path)
        opened.callback(database.close)
        store = cls(state_dir, database, IdentityStore(database, GatewayKeyFiles(state_dir)))
        give_to_owner(state_dir)
        return store

    @classmethod
    def _open_server(
        cls,
        state_dir: Path,
        address: StoreAddress,
        opened: contextlib.ExitStack,
        *,
        create: bool,
        serve: bool,
        locked: bool,
    ) -> "Store":
        """A command makes no directory and no cluster key; :func:`gateway.storage.administration.init_store`
        does."""
        if serve:
            make_directory(state_dir)
        if serve and not locked:
            opened.callback(ServerLock(state_dir).close)
        database = _connect(address, create=create, serve=serve)
        opened.callback(database.close)
        cluster_key = address.cluster_key or state_dir / CLUSTER_KEY_NAME
        holder = WrappedGatewayKeys(cluster_key, may_make=serve and address.cluster_key is None)
        identity = IdentityStore(database, holder, at_once=serve)
        store = cls(state_dir, database, identity, SecretBox(cluster_key))
        store.address = address
        if serve:
            store.member_key = holder.member_key()
            note_address(state_dir, address)
        store.process_name = keep_process_name(state_dir) if serve else kept_process_name(state_dir)
        if serve:
            give_to_owner(state_dir)
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
        if wait_s > 0 and self._database.is_served():
            time.sleep(wait_s)
        self._open.close()

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _connect(address: StoreAddress, *, create: bool, serve: bool) -> Database:
    """The driver is imported here: who uses files needs none."""
    try:
        from gateway.storage.postgres import PostgresDatabase
    except ImportError as error:
        raise StateError(
            f"{address} needs the PostgreSQL driver ({error}): pip install 'trunkline[postgres]'"
        ) from error
    return PostgresDatabase(address, create=create, serve=serve)


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


def make_directory(state_dir: Path) -> None:
    """Make the state directory, unless it is there. Raises StateUnwritable."""
    try:
        state_dir.parent.mkdir(parents=True, exist_ok=True)
        state_dir.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise StateUnwritable(
            f"cannot make the state directory {state_dir} ({error.strerror}): give another with --state"
        ) from error


def give_to_owner(state_dir: Path) -> None:
    """What root makes in another's state directory is given to that other: the gateway must open it. A link
    that lies there is nobody's way to what it leads to."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return
    owner = state_dir.stat()
    names = ("gateway*.key", CLUSTER_KEY_NAME, ADDRESS_NAME, PROCESS_NAME, f"{DATABASE_NAME}*", PID_NAME)
    for path in (found for name in names for found in state_dir.glob(name)):
        with contextlib.suppress(FileNotFoundError):
            if path.lstat().st_uid != owner.st_uid:
                os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
