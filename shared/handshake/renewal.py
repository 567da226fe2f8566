"""What a gateway gives an agent anew inside a session: a certificate, the next key (PROTOCOL §8.6, §8.12)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BeforeValidator

from shared.handshake.fields import Certificate, Integer, PublicKey, Signature, read_fields, write_octets
from shared.identity import KeySuccession

VERB = "renew"
"""The verb of the COMMAND that carries a renewal (PROTOCOL §4.8)."""


@dataclass(frozen=True, slots=True)
class _SuccessionMembers:
    """A succession as COMMAND says it."""

    key: PublicKey
    next: PublicKey
    until_s: Integer
    signature: Signature


def _read_succession(value: Any) -> KeySuccession | None:
    if value is None:
        return None
    said = read_fields(_SuccessionMembers, "renew.succession", value)
    return KeySuccession(said.key, said.next, said.until_s, said.signature)


@dataclass(frozen=True, slots=True)
class Renewal:
    """A COMMAND with the verb ``renew``. Neither part is believed before it is verified."""

    id: Integer
    certificate: Certificate = field(repr=False)
    succession: Annotated[KeySuccession | None, BeforeValidator(_read_succession)] = None

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
        return read_fields(cls, VERB, value)
