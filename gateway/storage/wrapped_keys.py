"""The gateway's keys in the store itself, wrapped: for gateways on several hosts that are one to agents.

Each is a fact of the database, encrypted (AES-256-GCM, authenticated with its fingerprint) by the cluster
key, which the store never sees: a file that the operator gives to every gateway, or that the first one makes
in its state directory. Who reads the database, or a backup of it, has no key of the gateway.
"""

import base64
import binascii
import contextlib
import hashlib
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from gateway.storage.errors import IdentityUnusable, StateUnwritable
from gateway.storage.key_files import GatewayKeyHolder
from shared.identity import GatewayIdentity, GatewayKeys, generate_key

CLUSTER_KEY_NAME = "cluster.key"
"""In the state directory, where the settings name no file."""

FACT_PREFIX = "wrapped gateway key "
"""The fact's name goes on with the key's fingerprint."""

_KEY_BYTES, _NONCE_BYTES, _FILE_BYTES = 32, 12, 4096
_FORM = "v1"
_COPY = (
    "copy the file from a gateway of this store, or from where trunkline store init made it, or name it with "
    "--cluster-key"
)


class WrappedGatewayKeys(GatewayKeyHolder):
    """Facts ``wrapped gateway key FINGERPRINT``: ``v1.ID-OF-THE-CLUSTER-KEY.BASE64``."""

    fact_prefix = FACT_PREFIX

    def __init__(self, path: Path, *, may_make: bool) -> None:
        """``path`` holds the cluster key. With ``may_make`` it is made there for the first gateway's key."""
        self._path = path
        self._may_make = may_make

    def member_key(self) -> bytes:
        """What only processes have that have the cluster key: they know each other by it. Raises
        IdentityUnusable."""
        return derive_member_key(load_cluster_key(self._path))

    def make_first(self) -> tuple[GatewayIdentity, Mapping[str, str]]:
        key = generate_key()
        if self._may_make:
            wrapping = load_or_make_cluster_key(self._path)
        else:
            wrapping = load_cluster_key(
                self._path,
                "this store has no gateway's key yet: make both with trunkline store init --store URL "
                "--cluster-key FILE",
            )
        return GatewayIdentity(key), wrap_key(key, wrapping)

    def held(self, facts: Mapping[str, str]) -> set[str]:
        return {name.removeprefix(FACT_PREFIX) for name in facts if name.startswith(FACT_PREFIX)}

    def found(self, facts: Mapping[str, str]) -> dict[str, GatewayIdentity]:
        wrapped = {name: value for name, value in facts.items() if name.startswith(FACT_PREFIX)}
        if not wrapped:
            return {}
        wrapping = load_cluster_key(self._path)
        unwrapped = (self._unwrap(name, value, wrapping) for name, value in wrapped.items())
        return {identity.fingerprint.hex(): identity for identity in unwrapped}

    def keep_next(self, key: Ed25519PrivateKey) -> Mapping[str, str]:
        return wrap_key(key, load_cluster_key(self._path))

    def settle(self, keys: GatewayKeys) -> None:
        """Facts change with their transaction: there is nothing to put in order."""

    def unusable(self, known: str) -> IdentityUnusable:
        return IdentityUnusable(
            f"the store does not hold the gateway's key that counts ({known[:16]}…), and agents trust no "
            "other: restore the store from a backup"
        )

    def _unwrap(self, name: str, value: str, wrapping: bytes) -> GatewayIdentity:
        fingerprint = name.removeprefix(FACT_PREFIX)
        form, _, rest = value.partition(".")
        wrapped_by, _, text = rest.partition(".")
        if form != _FORM:
            raise IdentityUnusable(
                "a later version of Trunkline wrapped the gateway's key: upgrade Trunkline"
            )
        if wrapped_by != key_id(wrapping):
            raise IdentityUnusable(
                f"{self._path} holds the cluster key {key_id(wrapping)}, and the gateway's key in the store "
                f"was wrapped with {wrapped_by}: copy that one from a gateway of the store, or name its file "
                "with --cluster-key"
            )
        try:
            data = base64.b64decode(text, validate=True)
            raw = AESGCM(wrapping).decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], fingerprint.encode())
            identity = GatewayIdentity(Ed25519PrivateKey.from_private_bytes(raw))
        except (InvalidTag, binascii.Error, ValueError) as error:
            raise IdentityUnusable(
                f"the gateway's key in the store ({fingerprint[:16]}…) was changed by somebody: restore the "
                "store from a backup"
            ) from error
        if identity.fingerprint.hex() != fingerprint:
            raise IdentityUnusable(f"the store holds another key under {fingerprint[:16]}…: restore it")
        return identity


def wrap_key(key: Ed25519PrivateKey, wrapping: bytes) -> dict[str, str]:
    """The fact that holds ``key``, wrapped with ``wrapping``."""
    fingerprint, nonce = GatewayIdentity(key).fingerprint.hex(), secrets.token_bytes(_NONCE_BYTES)
    sealed = AESGCM(wrapping).encrypt(nonce, key.private_bytes_raw(), fingerprint.encode())
    text = base64.b64encode(nonce + sealed).decode()
    return {FACT_PREFIX + fingerprint: f"{_FORM}.{key_id(wrapping)}.{text}"}


def key_id(wrapping: bytes) -> str:
    """Tells cluster keys apart, and gives nothing of them away."""
    return hashlib.sha256(b"trunkline wrapping key id" + wrapping).hexdigest()[:12]


def derive_member_key(wrapping: bytes) -> bytes:
    """32 bytes from which nobody finds the wrapping key (HKDF with SHA-256, RFC 5869)."""
    return HKDF(SHA256(), _KEY_BYTES, None, b"trunkline processes of one gateway 1").derive(wrapping)


def load_cluster_key(path: Path, missing: str = _COPY) -> bytes:
    """Raises IdentityUnusable when it is missing, no key, or others may read it. ``missing`` says what to do
    about a file that is not there."""
    try:
        with path.open("rb") as file:
            _refuse_open_file(path, os.fstat(file.fileno()))
            text = file.read(_FILE_BYTES)
    except FileNotFoundError as error:
        raise IdentityUnusable(f"there is no cluster key {path}: {missing}") from error
    except OSError as error:
        raise IdentityUnusable(
            f"cannot read the cluster key {path} ({error.strerror}): let the gateway's user own the file"
        ) from error
    try:
        key = base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != _KEY_BYTES:
        raise IdentityUnusable(
            f"{path} holds no cluster key: {_KEY_BYTES} random bytes in base64 (openssl rand -base64 32)"
        )
    return key


def load_or_make_cluster_key(path: Path) -> bytes:
    """The key in ``path``; a new one, mode 0600, where there is none. It is there whole or not at all, and of
    several that make it at once one does. The directory must exist. Raises StateError."""
    if path.exists():
        return load_cluster_key(path)
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        try:
            file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(file, "wb") as opened:
                opened.write(base64.b64encode(secrets.token_bytes(_KEY_BYTES)) + b"\n")
                opened.flush()
                os.fsync(opened.fileno())
            with contextlib.suppress(FileExistsError):  # another process was first
                os.link(fresh, path)
        finally:
            fresh.unlink(missing_ok=True)
    except FileNotFoundError as error:
        raise StateUnwritable(
            f"cannot make the cluster key {path}: there is no directory {path.parent}"
        ) from error
    except OSError as error:
        raise StateUnwritable(f"cannot make the cluster key {path} ({error.strerror})") from error
    return load_cluster_key(path)


def _refuse_open_file(path: Path, status: os.stat_result) -> None:
    """A key that others read is no secret. The group may, where the file is not ours (mounted secrets)."""
    if os.name != "posix":
        return
    group = 0 if status.st_uid != os.geteuid() else stat.S_IRWXG
    if stat.S_IMODE(status.st_mode) & (group | stat.S_IRWXO):
        raise IdentityUnusable(f"others than its owner may read {path}: chmod 600 {path}")
