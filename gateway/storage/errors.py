"""What can go wrong with the durable state. Every message says what to do.

The tree::

    StateError                  the state as a whole cannot be used
    ├── StateMissing            there is none where it was looked for, or it was deleted
    ├── StateInUse              another gateway runs on it
    ├── StateUnwritable         permissions, a full disk, a file system that cannot hold it
    ├── StateCorrupt            the database is damaged, or no database of ours
    ├── StateTooNew             a later version of Trunkline wrote it
    ├── StateBusy               another process holds it for too long
    └── IdentityUnusable        the gateway's key is gone, unreadable, or another than before
    RecordError                 one request of the store that cannot be met; the state is fine
    ├── BadValue                a name, label, pattern or number that is not allowed
    ├── NameTaken               an active client key has this name
    ├── UnknownRecord           nothing active has this name or id
    ├── AmbiguousId             more than one token's id begins like this
    ├── KeyStillCounts          the gateway's key before is in use; there are two at most
    └── EnrolmentRefused        an agent may not join
        ├── TokenUnknown
        ├── TokenRevoked
        ├── TokenExpired
        ├── TokenUsedUp
        ├── AgentNameTaken      another key holds the name
        ├── AgentKeyTaken       the key holds another name
        └── AgentKeyRevoked
"""

import errno
from pathlib import Path


class StateError(Exception):
    """The durable state cannot be used."""


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


class IdentityUnusable(StateError):
    """The gateway's key file is missing, unreadable or not the one this database belongs to."""


class RecordError(Exception):
    """A request that the store refuses. Nothing was changed."""


class BadValue(RecordError):
    """A value that may not be stored."""


class NameTaken(RecordError):
    """An active client key has this name already."""


class UnknownRecord(RecordError):
    """No record has this name or id."""


class AmbiguousId(RecordError):
    """The beginning of an id fits more than one record."""


class KeyStillCounts(RecordError):
    """The gateway's key cannot be changed again yet."""


class EnrolmentRefused(RecordError):
    """An agent may not join; the message is fit for its operator to read."""


class TokenUnknown(EnrolmentRefused):
    """No such join token was made here."""


class TokenRevoked(EnrolmentRefused):
    """The join token was revoked."""


class TokenExpired(EnrolmentRefused):
    """The join token's time is over."""


class TokenUsedUp(EnrolmentRefused):
    """As many agents have joined with the token as it allows."""


class AgentNameTaken(EnrolmentRefused):
    """An active agent with another key has the name."""


class AgentKeyTaken(EnrolmentRefused):
    """The key belongs to an active agent of another name."""


class AgentKeyRevoked(EnrolmentRefused):
    """The key belongs to an agent that was revoked; a revoked key never comes back."""
