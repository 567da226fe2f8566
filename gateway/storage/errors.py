"""What can go wrong with the durable state. Every message says what to do."""

import errno
from pathlib import Path


class StateError(Exception):
    """The durable state as a whole cannot be used."""


class StateMissing(StateError):
    """There is no state in the directory, or its database was deleted."""


class StateInUse(StateError):
    """Another gateway runs on this state."""


class StateUnwritable(StateError):
    """The state cannot be read or written: permissions, disk, file system."""

    @classmethod
    def opening(cls, path: Path, error: OSError) -> "StateUnwritable":
        """``path`` could not be opened or looked at."""
        what_to_do = {
            errno.EROFS: "make its file system writable again; the system's log says why it is not",
            errno.ENOSPC: "make room and try again",
        }
        advice = what_to_do.get(error.errno or 0, "run as the user that owns the state directory")
        return cls(f"cannot open {path} ({error.strerror}): {advice}")


class StateCorrupt(StateError):
    """The database is damaged or belongs to something else."""


class StateTooNew(StateError):
    """A later version of Trunkline wrote the database."""


class StateBusy(StateError):
    """Another process held the database for longer than we wait."""


class StateUnreachable(StateError):
    """The server that holds the state is away. What was to be changed just then may have been or not."""


class IdentityUnusable(StateError):
    """The gateway's key file is missing, unreadable or not the one this database belongs to."""


class ObjectStorageError(StateError):
    """The object store failed. Its message says which and how, and holds no secret of its address."""


class ObjectStorageFull(ObjectStorageError):
    """There is no room for more bytes."""


class ObjectMissing(ObjectStorageError):
    """There is no object of this name."""


class ObjectTooLarge(Exception):
    """The object would have had more bytes than it may; nothing of it is kept."""


class RecordError(Exception):
    """A request that the store refuses; the state is fine, and nothing was changed."""


class BadValue(RecordError):
    """A name, label, pattern or number that may not be stored."""


class NameTaken(RecordError):
    """An active client key or agent has this name already."""


class UnknownRecord(RecordError):
    """Nothing active has this name or id."""


class AmbiguousId(RecordError):
    """The beginning of an id fits more than one record."""


class KeyStillCounts(RecordError):
    """The gateway's key cannot be changed again yet: the one before it is still in use."""


class EnrolmentRefused(RecordError):
    """An agent may not join: its token or its name is no good. Its operator reads the message."""


class AgentKeyRevoked(EnrolmentRefused):
    """The key belongs to an agent that was revoked; a revoked key never comes back."""
