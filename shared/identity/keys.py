"""Ed25519 keys: make, keep in a file, take the fingerprint of (PROTOCOL §8.2)."""

import contextlib
import hashlib
import os
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from shared.protocol.errors import TrunklineError

PUBLIC_KEY_BYTES = 32
FINGERPRINT_BYTES = 32
_KEY_FILE_BYTES = 16 * 1024
"""No Ed25519 key file is a hundredth as long; a longer file is something else."""


class KeyFileError(TrunklineError):
    """A key file that cannot be read, written or trusted. The message names the file and what to do."""


@dataclass(frozen=True)
class GatewayIdentity:
    """The key that every gateway of one deployment of the gateway holds."""

    private_key: Ed25519PrivateKey

    @cached_property
    def public_key(self) -> bytes:
        """Raw, 32 bytes."""
        return public_bytes(self.private_key)

    @cached_property
    def fingerprint(self) -> bytes:
        """SHA-256 of the raw public key: what join tokens carry and agents pin."""
        return fingerprint_of(self.public_key)

    @cached_property
    def id(self) -> str:
        """The fingerprint's first 16 hex digits: names the gateway in certificates and logs."""
        return gateway_id(self.fingerprint)

    def sign(self, message: bytes) -> bytes:
        """Ed25519 signature, 64 bytes."""
        return self.private_key.sign(message)


def generate_key() -> Ed25519PrivateKey:
    """A new key from the system's randomness."""
    return Ed25519PrivateKey.generate()


def public_bytes(key: Ed25519PrivateKey) -> bytes:
    """The raw 32-byte public half."""
    return key.public_key().public_bytes_raw()


def fingerprint_of(public_key: bytes) -> bytes:
    """SHA-256 of a raw public key, 32 bytes."""
    return hashlib.sha256(public_key).digest()


def gateway_id(fingerprint: bytes) -> str:
    """The short name of the gateway with this fingerprint: 16 hex digits."""
    return fingerprint.hex()[:16]


def signature_holds(public_key: bytes, signature: bytes, message: bytes) -> bool:
    """Whether an Ed25519 signature verifies; False for a key that is no point of the curve, too."""
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def save_key(path: Path, key: Ed25519PrivateKey) -> None:
    """Write the key as PEM (PKCS#8), mode 0600, whole or not at all; replaces what is there. Root writes it
    for the directory's owner.

    Raises KeyFileError. The directory must exist.
    """
    with _temporary_key(path, key) as temporary:
        os.replace(temporary, path)
        _sync_directory(path.parent)


def create_key_file(path: Path) -> Ed25519PrivateKey:
    """Make a key and its file; if the file exists, load it instead. Of two that try at once one wins.

    Raises KeyFileError. The directory must exist.
    """
    if path.exists():
        return load_key(path)
    key = generate_key()
    with _temporary_key(path, key) as temporary:
        try:
            os.link(temporary, path)
        except FileExistsError:
            return load_key(path)
        _sync_directory(path.parent)
    return key


def load_key(path: Path) -> Ed25519PrivateKey:
    """Read a key file written by ``save_key``.

    Raises KeyFileError when it is missing, no unencrypted Ed25519 key, or others may read it.
    """
    try:
        with path.open("rb") as file:
            _refuse_open_file(path, os.fstat(file.fileno()))
            pem = file.read(_KEY_FILE_BYTES)
    except OSError as error:
        raise KeyFileError(f"cannot read the key file {path}: {error.strerror}") from error
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise KeyFileError(f"{path} is not a readable PEM private key; restore it from a backup") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyFileError(f"{path} holds another kind of key than Ed25519; restore it from a backup")
    return key


def _refuse_open_file(path: Path, status: os.stat_result) -> None:
    """A key that others read is no secret. The group may, where the file is not ours (mounted secrets)."""
    if os.name != "posix":
        return
    mode = stat.S_IMODE(status.st_mode)
    group_bits = 0 if status.st_uid != os.geteuid() else stat.S_IRWXG
    if mode & (stat.S_IRWXO | group_bits):
        raise KeyFileError(f"others may read the key file {path} (mode {mode:04o}); run: chmod 600 {path}")


@contextlib.contextmanager
def _temporary_key(path: Path, key: Ed25519PrivateKey) -> Iterator[Path]:
    """The key in a file of its own beside ``path``, on disk; gone again afterwards."""
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        try:
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                _give_to_owner_of(path.parent, file.fileno())
                file.write(pem)
                file.flush()
                os.fsync(file.fileno())
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise KeyFileError(f"cannot write the key file {path}: {error.strerror}") from error


def _give_to_owner_of(directory: Path, descriptor: int) -> None:
    """What root writes must be readable to the directory's owner at once: a gateway may run, and load it."""
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        owner = directory.stat()
        if owner.st_uid != 0:
            os.fchown(descriptor, owner.st_uid, owner.st_gid)


def _sync_directory(directory: Path) -> None:
    """Make the new name durable, where the system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
