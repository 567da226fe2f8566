"""What the four handshake frames say: the JSON half of each payload (PROTOCOL §8.3 to §8.5)."""

import hashlib
from dataclasses import dataclass, fields
from typing import Annotated, Any

import orjson
from pydantic import AfterValidator, Field

from shared.handshake.fields import (
    Certificate,
    HexId,
    Integer,
    Limits,
    Octets,
    PublicKey,
    Seconds,
    Signature,
    Text,
    Version,
    read_body,
    write_octets,
)
from shared.identity import AgentCertificate, is_name
from shared.protocol import limits
from shared.protocol.errors import ErrorCode, HandshakeMalformed, HandshakeRejected
from shared.protocol.peers import Incarnation, PeerList, ProcessName

MAX_PAYLOAD_BYTES = limits.HANDSHAKE_MESSAGE_BYTES - limits.FRAME_HEADER_BYTES
"""No handshake payload may be longer: each travels alone in a message of at most 32 KiB (PROTOCOL §8.1)."""

NONCE_BYTES = 32
"""Length of each side's nonce: never repeats in practice, as long as a SHA-256 digest."""

SUPPORTED_VERSIONS = (1,)
"""Protocol versions this code speaks."""

SESSION_ID_CHARS = 64
SOFTWARE_CHARS = 128
RETRY_AFTER_MAX_S = 86_400.0
_JOIN_DOMAIN = b"trunkline.1 JOIN\0"

_SessionId = Annotated[Text, Field(max_length=SESSION_ID_CHARS)]
_Capabilities = Annotated[
    tuple[Annotated[Text, Field(max_length=limits.CAPABILITY_CHARS)], ...],
    Field(max_length=limits.CAPABILITIES),
]
_Nonce = Annotated[Octets, Field(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]


def _check_name(name: str) -> str:
    if not is_name(name):
        raise ValueError(f"{name!a} cannot name an agent")
    return name


@dataclass(frozen=True, slots=True)
class ResumeRequest:
    """The session that an agent wants to resume: its id, and how many of its messages the agent has."""

    id: _SessionId
    received: Integer


@dataclass(frozen=True, slots=True)
class JoinProof:
    """The id of a join token (16 hex digits) and a signature by the key its secret yields (PROTOCOL §8.4)."""

    token_id: Annotated[HexId, Field(alias="id")]
    proof: Signature


@dataclass(frozen=True, slots=True)
class Challenge:
    """What CHALLENGE says. ``process`` is None for a gateway that is one process."""

    versions: Annotated[tuple[Version, ...], Field(min_length=1, max_length=16)]
    gateway: HexId
    key: PublicKey
    nonce: _Nonce
    process: ProcessName | None = None
    incarnation: Incarnation = 0

    def to_body(self) -> bytes:
        """The JSON text. A gateway that is one process says what it said before there could be several."""
        members: dict[str, Any] = {
            "versions": self.versions,
            "gateway": self.gateway,
            "key": self.key,
            "nonce": self.nonce,
        }
        if self.process is not None:
            members |= {"process": self.process, "incarnation": self.incarnation}
        return orjson.dumps(members, default=write_octets)

    @classmethod
    def from_body(cls, body: bytes) -> "Challenge":
        """Raises HandshakeMalformed."""
        return read_body(cls, "CHALLENGE", body)


@dataclass(frozen=True, slots=True, kw_only=True)
class _HelloMembers:
    """The members of HELLO that are the same before and after it is verified."""

    version: Version
    name: Annotated[Text, Field(max_length=253), AfterValidator(_check_name)]
    public_key: Annotated[PublicKey, Field(alias="key")]
    """Ed25519, raw, 32 bytes."""
    nonce: _Nonce
    software: Annotated[Text, Field(max_length=SOFTWARE_CHARS)]
    """Program and version the agent says it is; shown to operators, and nothing is decided by it."""
    session: ResumeRequest | None = None
    limits: Limits
    join: JoinProof | None = None
    capabilities: _Capabilities = ()
    """What the agent can do of what not every version can (PROTOCOL §8.4); unknown ones are ignored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HelloClaims(_HelloMembers):
    """What HELLO says, before any of it is believed."""

    certificate: Certificate | None = None

    def to_body(self) -> bytes:
        """The JSON text."""
        join = self.join
        members: dict[str, Any] = {
            "version": self.version,
            "name": self.name,
            "key": self.public_key,
            "nonce": self.nonce,
            "software": self.software,
            "session": self.session,
            "limits": self.limits,
            "certificate": self.certificate,
            "join": join and {"id": join.token_id, "proof": join.proof},
        }
        if self.capabilities:
            members["capabilities"] = self.capabilities
        return orjson.dumps(members, default=write_octets)

    @classmethod
    def from_body(cls, body: bytes) -> "HelloClaims":
        """Raises HandshakeMalformed; of certificate and join it wants exactly one."""
        claims = read_body(cls, "HELLO", body)
        if (claims.certificate is None) == (claims.join is None):
            raise HandshakeMalformed("HELLO wants exactly one of certificate and join")
        return claims


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello(_HelloMembers):
    """A HELLO whose signature verified: the sender holds the private half of ``public_key``.

    Exactly one of ``certificate`` and ``join`` is set. ``certificate`` was issued by this gateway, is
    valid now, and names ``name`` and ``public_key``; the caller must check whether it was revoked.
    ``join`` is only well-formed until ``GatewayHandshake.verify_join`` says more.
    """

    certificate: AgentCertificate | None

    @classmethod
    def of(cls, claims: HelloClaims, certificate: AgentCertificate | None) -> "Hello":
        return cls(**_members_of(claims) | {"certificate": certificate})


@dataclass(frozen=True, slots=True, kw_only=True)
class _WelcomeMembers:
    """The members of WELCOME that are the same before and after it is verified."""

    session_id: Annotated[_SessionId, Field(alias="session")]
    generation: Integer
    limits: Limits
    heartbeat_s: Annotated[Seconds, Field(ge=0.1, le=3600.0)]
    resume_window_s: Annotated[Seconds, Field(ge=0.0, le=86_400.0)]
    received: Integer | None = None
    """How many messages the gateway has of the session that goes on; None: the session is new."""
    capabilities: _Capabilities = ()
    """Those of HELLO that the gateway has as well."""
    peers: PeerList = ()
    """All processes of the gateway, the sender included; empty for a gateway that is one process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WelcomeTerms(_WelcomeMembers):
    """What WELCOME says; the certificate still unchecked."""

    certificate: Certificate | None = None

    def to_body(self) -> bytes:
        """The JSON text."""
        members: dict[str, Any] = {
            "session": self.session_id,
            "generation": self.generation,
            "limits": self.limits,
            "certificate": self.certificate,
            "heartbeat_s": self.heartbeat_s,
            "resume_window_s": self.resume_window_s,
        }
        if self.received is not None:
            members["received"] = self.received
        if self.capabilities:
            members["capabilities"] = self.capabilities
        if self.peers:
            members["peers"] = [peer.to_dict() for peer in self.peers]
        return orjson.dumps(members, default=write_octets)

    @classmethod
    def from_body(cls, body: bytes) -> "WelcomeTerms":
        """Raises HandshakeMalformed."""
        return read_body(cls, "WELCOME", body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome(_WelcomeMembers):
    """A WELCOME whose signature verified: the holder of the pinned gateway key accepted us, just now."""

    certificate: AgentCertificate | None
    """A fresh certificate to keep in place of the one held; always set after joining with a token."""
    doubt: str = ""
    """The certificate's dates say that this host's clock is wrong, or the gateway's."""
    gateway_key: bytes = b""
    """The public key that the gateway proved itself with: one of those that were pinned."""
    process: str | None = None
    """Which of the gateway's processes it is; None: it is one process."""
    incarnation: int = 0

    @classmethod
    def of(cls, terms: WelcomeTerms, certificate: AgentCertificate | None, **known: Any) -> "Welcome":
        """``known`` are the members of this class that WELCOME does not say."""
        return cls(**_members_of(terms) | {"certificate": certificate} | known)


def _members_of(message: HelloClaims | WelcomeTerms) -> dict[str, Any]:
    return {field.name: getattr(message, field.name) for field in fields(message)}


@dataclass(frozen=True, slots=True)
class _Reject:
    """What REJECT says."""

    code: Annotated[int, Field(strict=True, ge=1, le=0xFFFF)]
    reason: Annotated[Text, Field(max_length=limits.REASON_CHARS)]
    retry_after_s: Annotated[Seconds, Field(ge=0.0, le=RETRY_AFTER_MAX_S)] | None = None


def reject_body(code: ErrorCode, reason: str, retry_after_s: float | None) -> bytes:
    """The JSON text of REJECT. The reason is cut at the limit and cleared of what no line should hold."""
    line = "".join(c if c.isprintable() else " " for c in reason)[: limits.REASON_CHARS] or "refused"
    if retry_after_s is not None:
        retry_after_s = min(max(retry_after_s, 0.0), RETRY_AFTER_MAX_S)
    return orjson.dumps({"code": int(code), "reason": line, "retry_after_s": retry_after_s})


def read_reject(body: bytes) -> HandshakeRejected:
    """The exception that a REJECT stands for. Raises HandshakeMalformed when it is none."""
    reject = read_body(_Reject, "REJECT", body)
    return HandshakeRejected(ErrorCode.from_wire(reject.code), reject.reason, reject.retry_after_s)


def join_statement(challenge_digest: bytes, public_key: bytes, nonce: bytes, name: str) -> bytes:
    """What a join proof signs (PROTOCOL §8.4): this conversation, and the key and name to be enrolled.

    So a proof seen on the wire enrols no other key. ``challenge_digest`` is the transcript's digest after
    CHALLENGE.
    """
    name_digest = hashlib.sha256(name.encode("ascii")).digest()
    return _JOIN_DOMAIN + challenge_digest + public_key + nonce + name_digest
