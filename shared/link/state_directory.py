"""What an agent keeps in its state directory (name, trust, certificate), and the lock on it."""

import base64
import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field, PlainSerializer, PlainValidator, TypeAdapter

from shared.handshake.agent import CLOCK_TOLERANCE_S
from shared.identity import AgentCertificate, KeySuccession
from shared.identity.certificates import read_kept
from shared.identity.keys import FINGERPRINT_BYTES, gateway_id
from shared.process.file_lock import FileLock
from shared.protocol.errors import (
    CertificateInvalid,
    CertificateOutOfDate,
    GatewayUntrusted,
    TrunklineError,
)

FORMER = 8
"""Former names and former keys of the gateway that are remembered."""


class MembershipError(TrunklineError):
    """The agent cannot know who it is. The message says what to do."""


class DirectoryInUse(MembershipError):
    """Another process has the identity that is kept there."""


def _read_base64(text: str) -> bytes:
    """Raises ValueError."""
    return base64.b64decode(text, validate=True)


def _write_base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _read_fingerprint(text: str) -> bytes:
    """Raises ValueError."""
    fingerprint = bytes.fromhex(text)
    if len(fingerprint) != FINGERPRINT_BYTES:
        raise ValueError(f"a fingerprint has {FINGERPRINT_BYTES} bytes, not {len(fingerprint)}")
    return fingerprint


def _read_former_certificates(value: object) -> tuple[bytes, ...]:
    """What can be read of it: a member without them is one all the same."""
    found = []
    for text in value[:FORMER] if isinstance(value, list) else ():
        with suppress(ValueError, TypeError):
            found.append(_read_base64(text))
    return tuple(each for each in found if _kept(each) is not None)


Certificate = Annotated[bytes, PlainValidator(_read_base64), PlainSerializer(_write_base64)]
FormerCertificates = Annotated[
    tuple[bytes, ...],
    PlainValidator(_read_former_certificates),
    PlainSerializer(lambda value: [_write_base64(each) for each in value]),
]
Fingerprint = Annotated[
    bytes, PlainValidator(_read_fingerprint), PlainSerializer(bytes.hex), Field(alias="gateway")
]
"""The fingerprint of a gateway's key."""


@dataclass(frozen=True, slots=True)
class FormerKey:
    """A key that the gateway had: it counts until ``until_s`` (seconds since 1970) and stays known."""

    fingerprint: Fingerprint
    until_s: float


@dataclass(frozen=True, slots=True)
class MemberRecord:
    """What ``membership.json`` says."""

    name: str
    fingerprint: Fingerprint
    """The fingerprint of the newest key that is known."""
    certificate: Certificate
    """The certificate to present."""
    former_names: tuple[str, ...] = ()
    former_keys: tuple[FormerKey, ...] = ()
    former_certificates: FormerCertificates = ()
    """To show when the gateway refuses ``certificate`` for its dates: the one before (or the newest, where
    that is not the one to show), and of those before it the one that ends last."""

    def pins(self, wall_s: float) -> tuple[bytes, ...]:
        """Fingerprints of the keys that count now, the newest first."""
        former = (each.fingerprint for each in self.former_keys if wall_s < each.until_s)
        return (self.fingerprint, *former)

    def knows(self, fingerprint: bytes) -> bool:
        """Whether the gateway has this key or had it."""
        return fingerprint in (self.fingerprint, *(each.fingerprint for each in self.former_keys))

    def renamed(self, name: str) -> "MemberRecord":
        """Under another name, which the operator of the gateway gave it."""
        if name == self.name:
            return self
        former = tuple(each for each in self.former_names if each not in (name, self.name))
        return replace(self, name=name, former_names=(self.name, *former)[:FORMER])

    def succeeded(self, succession: KeySuccession) -> "MemberRecord":
        """With the gateway's next key; nothing changes when it is known already.

        Raises SignatureInvalid, and GatewayUntrusted when another than the newest known key signed it.
        """
        succession.verify()
        if succession.new_fingerprint == self.fingerprint:
            return self
        if succession.old_fingerprint != self.fingerprint:
            raise GatewayUntrusted(
                f"another key was announced by {gateway_id(succession.old_fingerprint)}, which is not this "
                f"agent's gateway {gateway_id(self.fingerprint)}"
            )
        former = FormerKey(self.fingerprint, succession.until_s)
        keys = (former, *self.former_keys)[:FORMER]
        return replace(self, fingerprint=succession.new_fingerprint, former_keys=keys)

    def taking(self, fresh: AgentCertificate, wall_s: float) -> "MemberRecord":
        """With a certificate that the gateway gives for the one it has just taken.

        One that ends sooner is of a gateway whose clock is behind, or was ahead, or that lets certificates
        live shorter now. While the clock here agrees with what is held and not with that one, it is kept
        beside, for it is two to one; else it is shown from now on, under its name. Nothing is lost whichever
        clock is wrong: the other one is shown when the gateway refuses the first for its dates.
        """
        held = _kept(self.certificate)
        sooner = held is not None and fresh.not_after_s < held.not_after_s
        if held is not None and sooner and _fits(held, wall_s) and not _fits(fresh, wall_s):
            return replace(self, former_certificates=_worth_keeping((fresh.der, *self.former_certificates)))
        return self.showing(fresh)

    def showing(self, certificate: AgentCertificate) -> "MemberRecord":
        """With ``certificate`` as the one to show, under its name."""
        before = (self.certificate, *self.former_certificates)
        others = _worth_keeping([each for each in before if each != certificate.der])
        return replace(
            self.renamed(certificate.name), certificate=certificate.der, former_certificates=others
        )

    def alternatives(self, wall_s: float) -> list[AgentCertificate]:
        """Former certificates to try after a refusal for dates: later ones, or all if this has not begun."""
        shown = _kept(self.certificate)
        former = [each for each in map(_kept, self.former_certificates) if each is not None]
        if shown is None or wall_s < shown.not_before_s:
            return former
        return [each for each in former if each.not_after_s > shown.not_after_s]

    @classmethod
    def read(cls, path: Path) -> "MemberRecord | None":
        """None when there is no such file. Raises :class:`MembershipError`."""
        try:
            return _FILE.validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise MembershipError(f"{path} cannot be read: {error.strerror}") from error
        except (ValueError, TypeError) as error:
            raise MembershipError(
                f"{path} is damaged: remove it and join again with a token (trunkline token create)"
            ) from error

    def write(self, path: Path) -> None:
        """Whole or not at all, mode 0600. Raises :class:`MembershipError`."""
        text = _FILE.dump_json(self, indent=2, by_alias=True, exclude_defaults=True)
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
        except OSError as error:
            with suppress(OSError):
                beside.unlink(missing_ok=True)
            raise MembershipError(f"{path} cannot be written: {error.strerror}") from error


_FILE = TypeAdapter(MemberRecord)
"""The form of ``membership.json``."""


def _kept(der: bytes) -> AgentCertificate | None:
    """None if another program wrote the file."""
    try:
        return read_kept(der)
    except CertificateInvalid:
        return None


def _worth_keeping(others: Sequence[bytes]) -> tuple[bytes, ...]:
    """The first, and the one of the rest that ends last."""
    ends_s = {each: kept.not_after_s for each in others[1:] if (kept := _kept(each)) is not None}
    return (*others[:1], *sorted(ends_s, key=ends_s.__getitem__)[-1:])


def _fits(certificate: AgentCertificate, wall_s: float) -> bool:
    """Whether it is valid by the clock here, or nearly."""
    try:
        certificate.check_dates(wall_s, CLOCK_TOLERANCE_S, CLOCK_TOLERANCE_S)
    except CertificateOutOfDate:
        return False
    return True


LOCK_FILE = "agent.lock"


def make_state_directory(directory: Path) -> None:
    """Makes it, mode 0700, where there is none. Raises :class:`MembershipError`."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise MembershipError(f"the state directory {directory} cannot be used: {error.strerror}") from error


@contextmanager
def locked_state_directory(directory: Path) -> Iterator[None]:
    """The state directory (made, mode 0700, where there is none) is this process's alone meanwhile: with one
    identity, two agents would end each other's tunnels.

    ``agent.lock`` in it tells process and host; its lock ends with the process, however that ends. Raises
    :class:`DirectoryInUse` when another agent runs on the directory, and :class:`MembershipError` when it
    cannot be used.
    """
    make_state_directory(directory)
    path = directory / LOCK_FILE
    try:
        lock = FileLock(path)
    except OSError as error:
        raise MembershipError(f"{path} cannot be written: {error.strerror}") from error
    with closing(lock):
        if not lock.try_take(exclusive=True):
            raise DirectoryInUse(
                f"another agent runs on {directory} already ({lock.holder()}), and two with one identity "
                "would end each other's tunnels: stop that one first, or give this one a --state of its own"
            )
        with suppress(OSError):  # a full disk: an agent that has joined can work all the same
            lock.sign()
        yield
