"""Secrets in the store that must be had again in plain text, encrypted (AES-256-GCM) with a key that the
store never sees: who reads the database, or a backup of it, has none of them."""

import base64
import binascii
import secrets
from collections.abc import Callable
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from gateway.storage.errors import IdentityUnusable
from gateway.storage.wrapped_keys import key_id, load_cluster_key, load_or_make_cluster_key

_NONCE_BYTES, _KEY_BYTES = 12, 32
_FORM = "v1"
_INFO = b"trunkline secrets in the store 1"
_COPY = "copy it from a gateway of this store or from a backup, or make every secret anew"


class SecretBox:
    """Encrypts with a key derived from the cluster key: ``v1.ID-OF-THE-CLUSTER-KEY.BASE64``. Methods raise
    IdentityUnusable."""

    def __init__(self, path: Path, made: Callable[[], None] | None = None) -> None:
        """``path`` holds the cluster key. With ``made`` it is made there for the first secret, and ``made``
        is called then."""
        self._path = path
        self._made = made

    def seal(self, name: str, text: str) -> str:
        """``text``, to be read under the same name only."""
        if self._made is not None and not self._path.exists():
            wrapping = load_or_make_cluster_key(self._path)
            self._made()
        else:
            wrapping = load_cluster_key(self._path, _COPY)
        nonce = secrets.token_bytes(_NONCE_BYTES)
        sealed = AESGCM(_derive(wrapping)).encrypt(nonce, text.encode(), name.encode())
        return f"{_FORM}.{key_id(wrapping)}.{base64.b64encode(nonce + sealed).decode()}"

    def read(self, name: str, sealed: str) -> str:
        """What was sealed under this name."""
        form, _, rest = sealed.partition(".")
        sealed_by, _, text = rest.partition(".")
        if form != _FORM:
            raise IdentityUnusable("a later version of Trunkline encrypted this secret: upgrade Trunkline")
        wrapping = load_cluster_key(self._path, _COPY)
        if sealed_by != key_id(wrapping):
            raise IdentityUnusable(
                f"the secret was encrypted with the cluster key {sealed_by}, and {self._path} holds "
                f"{key_id(wrapping)}: put that one back, or make the secret anew"
            )
        try:
            data = base64.b64decode(text, validate=True)
            plain = AESGCM(_derive(wrapping)).decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], name.encode())
        except (InvalidTag, binascii.Error, ValueError) as error:
            raise IdentityUnusable(f"the secret of {name!r} was changed by somebody: make it anew") from error
        return plain.decode()


def _derive(wrapping: bytes) -> bytes:
    """RFC 5869."""
    return HKDF(SHA256(), _KEY_BYTES, None, _INFO).derive(wrapping)
