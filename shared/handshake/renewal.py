"""What a gateway gives an agent anew inside a session: a certificate, the next key (PROTOCOL §8.6, §8.12)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shared.handshake.fields import MAX_INTEGER, Fields, write_octets
from shared.identity import Succession
from shared.identity.certificates import CERTIFICATE_BYTES
from shared.identity.keys import PUBLIC_KEY_BYTES

VERB = "renew"
"""Of the COMMAND that carries it (PROTOCOL §4.8)."""

SIGNATURE_BYTES = 64


@dataclass(frozen=True, slots=True)
class Renewal:
    """A COMMAND with the verb ``renew``. Neither part is believed before it is verified."""

    id: int
    certificate: bytes = field(repr=False)
    succession: Succession | None = None

    def to_dict(self) -> dict[str, Any]:
        """What COMMAND says."""
        succession = self.succession
        return {
            "id": self.id,
            "verb": VERB,
            "certificate": write_octets(self.certificate),
            "succession": succession
            and {
                "key": write_octets(succession.old_key),
                "next": write_octets(succession.new_key),
                "until_s": succession.until_s,
                "signature": write_octets(succession.signature),
            },
        }

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> "Renewal":
        """Raises HandshakeMalformed."""
        fields = Fields("renew", dict(value))
        return cls(
            id=fields.integer("id", 0),
            certificate=fields.octets("certificate", 1, CERTIFICATE_BYTES),
            succession=_read_succession(fields),
        )


def _read_succession(fields: Fields) -> Succession | None:
    if not fields.has("succession"):
        return None
    inner = fields.inner("succession")
    return Succession(
        old_key=inner.octets("key", PUBLIC_KEY_BYTES, PUBLIC_KEY_BYTES),
        new_key=inner.octets("next", PUBLIC_KEY_BYTES, PUBLIC_KEY_BYTES),
        until_s=inner.integer("until_s", 0, MAX_INTEGER),
        signature=inner.octets("signature", SIGNATURE_BYTES, SIGNATURE_BYTES),
    )
