"""Join tokens: what lets a host become an agent, once or a few times (PROTOCOL §8.9)."""

import base64
import hashlib
import secrets
import string
import struct
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from shared.identity.keys import FINGERPRINT_BYTES, public_bytes
from shared.protocol.errors import JoinTokenInvalid

PREFIX = "tlj_"
TOKEN_ID_BYTES = 8
SECRET_BYTES = 16
VERSION = 1
_KEY_LABEL = b"trunkline.1 JOIN KEY\0"
_CHECK_LABEL = b"trunkline.1 JOIN CHECK\0"
_CHECK_BYTES = 5
_CHECKED = bytes.fromhex("c3c35a")
"""The end of an id that begins with a checksum. Older ids have none; one in 16 million ends so by chance."""
_RAW = struct.Struct(f"B{TOKEN_ID_BYTES}s{SECRET_BYTES}s{FINGERPRINT_BYTES}s")
"""Version, id, secret and fingerprint."""
TEXT_CHARS = len(PREFIX) + _RAW.size * 4 // 3
"""80: the raw 57 bytes are 76 characters of base64url, without padding."""
_ALPHABET = frozenset(string.ascii_letters + string.digits + "-_")


@dataclass(frozen=True, slots=True)
class JoinToken:
    """A join token. Its secret never crosses the wire and is not in ``repr``.

    The secret yields an Ed25519 key. The gateway keeps that key's public half (``verifier``), so what it
    stores can recognise a holder of the token but cannot be used to join.
    """

    id: bytes
    secret: bytes = field(repr=False)
    fingerprint: bytes
    """SHA-256 of the public key of the gateway that made the token."""

    def __post_init__(self) -> None:
        assert len(self.id) == TOKEN_ID_BYTES
        assert len(self.secret) == SECRET_BYTES
        assert len(self.fingerprint) == FINGERPRINT_BYTES

    @classmethod
    def new(cls, fingerprint: bytes) -> "JoinToken":
        """A token with a random secret for the gateway with this fingerprint; its id is their checksum."""
        secret = secrets.token_bytes(SECRET_BYTES)
        return cls(_checksum(secret, fingerprint) + _CHECKED, secret, fingerprint)

    @property
    def id_text(self) -> str:
        """The id as stored, listed and sent: 16 hex digits. Not secret."""
        return self.id.hex()

    def encode(self) -> str:
        """The text to hand over: ``tlj_`` and 76 characters."""
        raw = _RAW.pack(VERSION, self.id, self.secret, self.fingerprint)
        return PREFIX + base64.urlsafe_b64encode(raw).decode("ascii")

    @classmethod
    def decode(cls, text: str) -> "JoinToken":
        """Read what ``encode`` wrote; surrounding white space is ignored.

        Raises JoinTokenInvalid with a message that says what is wrong and never repeats the token.
        """
        text = text.strip()
        _check_shape(text)
        version, *parts = _RAW.unpack(base64.urlsafe_b64decode(text.removeprefix(PREFIX)))
        if version != VERSION:
            raise JoinTokenInvalid(
                f"join token of version {version}, this program reads version {VERSION}: "
                "was it copied wrongly, or made by another version of Trunkline?"
            )
        token = cls(*parts)
        if token.id.endswith(_CHECKED) and not token.has_checksum:
            raise JoinTokenInvalid(
                "the join token is damaged: its checksum is wrong, so some of its characters are not those "
                "that `trunkline token create` printed; copy it again"
            )
        return token

    @property
    def has_checksum(self) -> bool:
        """Its text is known to be whole. Tokens made by earlier versions have no checksum."""
        return self.id == _checksum(self.secret, self.fingerprint) + _CHECKED

    def verifier(self) -> bytes:
        """What the gateway stores: the raw public half of the key that the secret yields, 32 bytes."""
        return public_bytes(self._key())

    def prove(self, message: bytes) -> bytes:
        """Sign ``message`` with the key that the secret yields: 64 bytes that ``verifier`` verifies."""
        return self._key().sign(message)

    def _key(self) -> Ed25519PrivateKey:
        seed = hashlib.sha256(_KEY_LABEL + self.id + self.secret).digest()
        return Ed25519PrivateKey.from_private_bytes(seed)


def _checksum(secret: bytes, fingerprint: bytes) -> bytes:
    return hashlib.sha256(_CHECK_LABEL + secret + fingerprint).digest()[:_CHECK_BYTES]


def _check_shape(text: str) -> None:
    if not text:
        raise JoinTokenInvalid("the join token is empty; make one with: trunkline token create")
    if text.startswith("sk-tl-"):
        raise JoinTokenInvalid(
            "this is a client API key; an agent needs a join token: trunkline token create"
        )
    if not text.startswith(PREFIX):
        raise JoinTokenInvalid(f"a join token begins with {PREFIX}; make one with: trunkline token create")
    if any(character.isspace() for character in text):
        raise JoinTokenInvalid("the join token has a space or line break inside: copy it as one line")
    strange = next((c for c in text if c not in _ALPHABET), None)
    if strange is not None:
        raise JoinTokenInvalid(f"the join token contains {strange!a}, which no join token has: copy it again")
    if len(text) != TEXT_CHARS:
        kind = "was it cut off when copied?" if len(text) < TEXT_CHARS else "was it pasted twice?"
        raise JoinTokenInvalid(f"the join token has {len(text)} characters instead of {TEXT_CHARS}: {kind}")
