"""How a gateway's key is followed by another one, with a time in which both count (PROTOCOL §8.12)."""

from collections.abc import Collection
from dataclasses import dataclass, field

from shared.identity.keys import GatewayIdentity, fingerprint_of, signature_holds
from shared.protocol.errors import SignatureInvalid

_DOMAIN = b"trunkline.1 SUCCESSION\0"


@dataclass(frozen=True, slots=True)
class KeySuccession:
    """One key's word that another one follows it. Believe it only of a key that is pinned."""

    old_key: bytes
    """Raw, 32 bytes, as ``new_key``."""
    new_key: bytes
    until_s: int
    """Seconds since 1970: from then on the new key alone counts."""
    signature: bytes = field(repr=False)
    """The old key's signature, 64 bytes."""

    @classmethod
    def sign(cls, old: GatewayIdentity, new_key: bytes, until_s: int) -> "KeySuccession":
        """What the holder of the old key says."""
        signature = old.sign(_statement(old.public_key, new_key, until_s))
        return cls(old.public_key, new_key, until_s, signature)

    @property
    def old_fingerprint(self) -> bytes:
        return fingerprint_of(self.old_key)

    @property
    def new_fingerprint(self) -> bytes:
        return fingerprint_of(self.new_key)

    def verify(self) -> None:
        """Raises SignatureInvalid unless the old key signed all of it."""
        statement = _statement(self.old_key, self.new_key, self.until_s)
        if not signature_holds(self.old_key, self.signature, statement):
            raise SignatureInvalid("the word that another key follows is not the old key's")


@dataclass(frozen=True, slots=True)
class GatewayKeys:
    """The gateway's key and, for a while after it was changed, the one before."""

    current: GatewayIdentity
    previous: GatewayIdentity | None = None
    until_s: float = 0.0
    """Seconds since 1970: how long the one before counts."""

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of its keys, that of the current one first."""
        return tuple(key.id for key in (self.current, self.previous) if key is not None)

    def previous_at(self, wall_s: float) -> GatewayIdentity | None:
        """The key before, while it counts."""
        return self.previous if wall_s < self.until_s else None

    def choose(self, known: Collection[str], wall_s: float) -> GatewayIdentity:
        """The key for an agent that trusts the keys with the ids ``known``. If it does not say which, it may
        know only the previous one, which is chosen while that counts."""
        previous = self.previous_at(wall_s)
        if previous is None or self.current.id in known:
            return self.current
        return previous if not known or previous.id in known else self.current

    def trusted(self, wall_s: float) -> tuple[bytes, ...]:
        """Public keys whose certificates are good."""
        keys = (self.current, self.previous_at(wall_s))
        return tuple(key.public_key for key in keys if key is not None)

    def succession(self, wall_s: float) -> KeySuccession | None:
        """What agents are told while the key before counts."""
        previous = self.previous_at(wall_s)
        if previous is None:
            return None
        return KeySuccession.sign(previous, self.current.public_key, int(self.until_s))


def _statement(old_key: bytes, new_key: bytes, until_s: int) -> bytes:
    return _DOMAIN + old_key + new_key + until_s.to_bytes(8, "big")
