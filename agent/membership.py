"""Who this agent is, and to which gateway it belongs: the state directory.

``agent.key`` is the agent's own key, made here and never sent. ``membership.json`` holds its name, the
SHA-256 of the gateway's key and the certificate the gateway issued. Both are readable by their owner alone.
``agent.lock`` keeps a second agent out: two with one identity would take each other's tunnel away.
"""

import base64
import os
import secrets
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from shared.errors import ErrorCode, HandshakeRejected, JoinTokenInvalid, TrunklineError
from shared.handshake import NONCE_BYTES, AgentHandshake, ResumeRequest, Welcome
from shared.identity import JoinToken, KeyFileError, create_key_file
from shared.identity.keys import FINGERPRINT_BYTES, gateway_id
from shared.streams import OWN_WINDOWS, Role, own_limits

KEY_FILE = "agent.key"
MEMBERSHIP_FILE = "membership.json"
LOCK_FILE = "agent.lock"


class MembershipError(TrunklineError):
    """The agent cannot know who it is. The message says what to do."""


@dataclass(frozen=True, slots=True)
class Record:
    """What ``membership.json`` says."""

    name: str
    fingerprint: bytes
    certificate: bytes

    @classmethod
    def read(cls, path: Path) -> "Record | None":
        """None when there is no such file. Raises :class:`MembershipError`."""
        try:
            value: Mapping[str, Any] = orjson.loads(path.read_bytes())
            record = cls(
                str(value["name"]),
                bytes.fromhex(value["gateway"]),
                base64.b64decode(value["certificate"], validate=True),
            )
        except FileNotFoundError:
            return None
        except OSError as error:
            raise MembershipError(f"{path} cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise MembershipError(
                f"{path} is damaged: remove it and join again with a token (trunkline token create)"
            ) from error
        if len(record.fingerprint) != FINGERPRINT_BYTES:
            raise MembershipError(f"{path} is damaged: remove it and join again with a token")
        return record

    def write(self, path: Path) -> None:
        """Whole or not at all, mode 0600. Raises :class:`MembershipError`."""
        value = {
            "name": self.name,
            "gateway": self.fingerprint.hex(),
            "certificate": base64.b64encode(self.certificate).decode(),
        }
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(orjson.dumps(value, option=orjson.OPT_INDENT_2))
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
        except OSError as error:
            with suppress(OSError):
                beside.unlink(missing_ok=True)
            raise MembershipError(f"{path} cannot be written: {error.strerror}") from error


class Membership:
    """The agent's identity while it runs; a context manager that holds the directory's lock."""

    def __init__(
        self,
        directory: Path,
        key: Ed25519PrivateKey,
        name: str,
        record: Record | None,
        token: JoinToken | None,
    ) -> None:
        self._directory = directory
        self._key = key
        self._record = record
        self._token = token
        self._use_token = record is None
        self._may_do_later = False
        """The certificate was refused for now only: a clock is wrong."""
        self._unkept = False
        """The newest certificate is not on the disk yet."""
        self._lock: int | None = None
        self.name = name

    @classmethod
    def open(cls, directory: Path, *, join: str | None, name: str | None, default_name: str) -> "Membership":
        """``name`` is what the operator asked for; without it a member keeps its name, and a new agent takes
        ``default_name``. Raises :class:`MembershipError`."""
        record = None
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            record = Record.read(directory / MEMBERSHIP_FILE)
            token = None if join is None else JoinToken.decode(join)
            key = create_key_file(directory / KEY_FILE)
        except OSError as error:
            raise MembershipError(
                f"the state directory {directory} cannot be used: {error.strerror}"
            ) from error
        except (JoinTokenInvalid, KeyFileError) as error:
            raise MembershipError(str(error)) from error
        if record is None and token is None:
            raise MembershipError(
                "this agent has not joined a gateway yet: run `trunkline token create` on the gateway and "
                "give the token with --join, or in TRUNKLINE_AGENT_JOIN"
            )
        if record is not None:
            _check(record, token, name, directory)
        return cls(directory, key, record.name if record is not None else name or default_name, record, token)

    @property
    def gateway(self) -> str:
        """The short name of the gateway it belongs to."""
        fingerprint = self._record.fingerprint if self._record is not None else self._required.fingerprint
        return gateway_id(fingerprint)

    @property
    def joined(self) -> bool:
        return self._record is not None

    @property
    def joining(self) -> bool:
        """The next handshake shows the join token, not the certificate."""
        return self._use_token

    @property
    def has_spare_token(self) -> bool:
        """A join token was given that is not needed."""
        return self._token is not None and not self._use_token

    @property
    def _required(self) -> JoinToken:
        assert self._token is not None
        return self._token

    def handshake(self, software: str, session: ResumeRequest | None = None) -> AgentHandshake:
        """A handshake for the next tunnel: with the certificate, or to join. ``session`` is the one to go on
        with. Raises MembershipError."""
        record = None if self._use_token else self._record
        try:
            return AgentHandshake(
                self._key,
                self.name,
                secrets.token_bytes(NONCE_BYTES),
                certificate=None if record is None else record.certificate,
                join_token=self._required if record is None else None,
                pinned_fingerprint=None if record is None else record.fingerprint,
                software=software,
                limits=own_limits(OWN_WINDOWS[Role.AGENT]).to_mapping(),
                session=session,
            )
        except ValueError as error:
            raise MembershipError(str(error)) from error

    def welcomed(self, welcome: Welcome) -> bool:
        """Keep the certificate that came with WELCOME, if one did. True when this made us a member.

        Raises :class:`MembershipError` when it cannot be kept, which for a member is no reason to stop: it is
        in use all the same, and each later welcome tries to keep it again.
        """
        if welcome.certificate is not None:
            fingerprint = self._record.fingerprint if self._record is not None else self._required.fingerprint
            self._record = Record(self.name, fingerprint, welcome.certificate.der)
            self._unkept = True
        if self._unkept and self._record is not None:
            self._record.write(self._directory / MEMBERSHIP_FILE)
            self._unkept = False
        if welcome.certificate is None:
            return False
        was_joining, self._use_token = self._use_token, False
        return was_joining

    def try_otherwise(self, error: HandshakeRejected) -> bool:
        """The gateway said no. True when there is another way to try: a certificate that is out of date or
        unknown is replaced with the join token, once. A token that does no better is forgotten, if the
        certificate may do later. Never after a revocation: a token that lies about in the environment must
        not undo it."""
        if self._token is None or error.code is not ErrorCode.UNAUTHENTICATED:
            return False
        if not self._use_token:
            self._use_token, self._may_do_later = True, error.retry_after_s is not None
            return True
        if self._may_do_later:
            self._use_token, self._token = False, None
            return True
        return False

    def __enter__(self) -> Self:
        """Raises :class:`MembershipError` when another agent runs on the same directory."""
        path = self._directory / LOCK_FILE
        try:
            self._lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise MembershipError(f"{path} cannot be written: {error.strerror}") from error
        if not _lock(self._lock):
            os.close(self._lock)
            raise MembershipError(
                f"another agent runs on {self._directory}: give this one a --state of its own"
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lock is not None:
            os.close(self._lock)


def _check(record: Record, token: JoinToken | None, name: str | None, directory: Path) -> None:
    if token is not None and token.fingerprint != record.fingerprint:
        raise MembershipError(
            f"this agent belongs to gateway {gateway_id(record.fingerprint)}, but the join token is for "
            f"gateway {gateway_id(token.fingerprint)}. To serve both, give the second agent a --state of its "
            f"own; to leave the first for good, remove {directory / MEMBERSHIP_FILE}"
        )
    if name is not None and name != record.name:
        raise MembershipError(
            f"this agent joined as {record.name!r} and cannot become {name!r}: leave --name away, or give "
            f"the other agent a --state of its own, or remove {directory / MEMBERSHIP_FILE} and join again"
        )


def _lock(descriptor: int) -> bool:
    """False when somebody else holds the lock. It is gone with the process, however that ends."""
    if sys.platform == "win32":
        return True
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
