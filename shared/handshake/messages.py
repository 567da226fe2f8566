"""What the four handshake frames say: the JSON half of each payload (PROTOCOL §8.3–§8.6)."""

from collections.abc import Mapping
from dataclasses import dataclass

from shared import limits
from shared.identity import AgentCertificate

MAX_PAYLOAD_BYTES = limits.HANDSHAKE_MESSAGE_BYTES - limits.FRAME_HEADER_BYTES
"""No handshake payload may be longer: each travels alone in a message of at most 32 KiB (PROTOCOL §8.1)."""

NONCE_BYTES = 32
"""Length of each side's nonce: never repeats in practice, as long as a SHA-256 digest."""

SUPPORTED_VERSIONS = (1,)
"""Protocol versions this code speaks."""


@dataclass(frozen=True, slots=True)
class ResumeRequest:
    """The session an agent asks to take up again: its id and how many messages it has received of it."""

    id: str
    received: int


@dataclass(frozen=True, slots=True)
class JoinProof:
    """The id of a join token (16 hex digits) and a signature by the key its secret yields (PROTOCOL §8.4)."""

    token_id: str
    proof: bytes


@dataclass(frozen=True, slots=True)
class Hello:
    """A HELLO whose signature verified: the sender holds the private half of ``public_key``.

    Exactly one of ``certificate`` and ``join`` is set. ``certificate`` was issued by this gateway, is
    valid now, and names ``name`` and ``public_key``; whether it was revoked is for the caller to ask.
    ``join`` is only well-formed until ``GatewayHandshake.verify_join`` says more.
    """

    version: int
    name: str
    public_key: bytes
    """Ed25519, raw, 32 bytes."""
    nonce: bytes
    software: str
    session: ResumeRequest | None
    limits: Mapping[str, int]
    certificate: AgentCertificate | None
    join: JoinProof | None


@dataclass(frozen=True, slots=True)
class Welcome:
    """A WELCOME whose signature verified: the holder of the pinned gateway key accepted us, just now."""

    session_id: str
    generation: int
    limits: Mapping[str, int]
    certificate: AgentCertificate | None
    """A fresh certificate to keep in place of the one held; always set after joining with a token."""
    heartbeat_s: float
    resume_window_s: float
