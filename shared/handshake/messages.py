"""What the four handshake frames say: the JSON half of each payload (PROTOCOL §8.3 to §8.5)."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from shared.handshake.fields import Fields, write_octets
from shared.identity import AgentCertificate, is_name
from shared.identity.certificates import CERTIFICATE_BYTES
from shared.identity.keys import PUBLIC_KEY_BYTES
from shared.protocol import limits
from shared.protocol.errors import ErrorCode, HandshakeMalformed, HandshakeRejected

MAX_PAYLOAD_BYTES = limits.HANDSHAKE_MESSAGE_BYTES - limits.FRAME_HEADER_BYTES
"""No handshake payload may be longer: each travels alone in a message of at most 32 KiB (PROTOCOL §8.1)."""

NONCE_BYTES = 32
"""Length of each side's nonce: never repeats in practice, as long as a SHA-256 digest."""

SUPPORTED_VERSIONS = (1,)
"""Protocol versions this code speaks."""

SESSION_ID_CHARS = 64
SOFTWARE_CHARS = 128
HEARTBEAT_MAX_S = 3600.0
RESUME_WINDOW_MAX_S = 86_400.0
RETRY_AFTER_MAX_S = 86_400.0
PROOF_BYTES = 64
_GATEWAY_ID = re.compile(r"[0-9a-f]{16}")
_TOKEN_ID = re.compile(r"[0-9a-f]{16}")
_JOIN_DOMAIN = b"trunkline.1 JOIN\0"


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
class Challenge:
    """What CHALLENGE says."""

    versions: tuple[int, ...]
    gateway: str
    public_key: bytes
    nonce: bytes

    def to_body(self) -> bytes:
        """The JSON text."""
        return orjson.dumps(
            {
                "versions": self.versions,
                "gateway": self.gateway,
                "key": write_octets(self.public_key),
                "nonce": write_octets(self.nonce),
            }
        )

    @classmethod
    def from_body(cls, body: bytes) -> "Challenge":
        """Raises HandshakeMalformed."""
        fields = Fields.parse("CHALLENGE", body)
        return cls(
            versions=fields.versions("versions"),
            gateway=_matching(fields, "gateway", _GATEWAY_ID),
            public_key=fields.octets("key", PUBLIC_KEY_BYTES, PUBLIC_KEY_BYTES),
            nonce=fields.octets("nonce", NONCE_BYTES, NONCE_BYTES),
        )


@dataclass(frozen=True, slots=True)
class HelloClaims:
    """What HELLO says, before any of it is believed."""

    version: int
    name: str
    public_key: bytes
    nonce: bytes
    software: str
    session: ResumeRequest | None
    limits: Mapping[str, int]
    certificate: bytes | None
    join: JoinProof | None

    def to_body(self) -> bytes:
        """The JSON text."""
        session, join, certificate = self.session, self.join, self.certificate
        return orjson.dumps(
            {
                "version": self.version,
                "name": self.name,
                "key": write_octets(self.public_key),
                "nonce": write_octets(self.nonce),
                "software": self.software,
                "session": session and {"id": session.id, "received": session.received},
                "limits": dict(self.limits),
                "certificate": certificate and write_octets(certificate),
                "join": join and {"id": join.token_id, "proof": write_octets(join.proof)},
            }
        )

    @classmethod
    def from_body(cls, body: bytes) -> "HelloClaims":
        """Raises HandshakeMalformed; of certificate and join it wants exactly one."""
        fields = Fields.parse("HELLO", body)
        claims = cls(
            version=fields.integer("version", 1, 255),
            name=fields.text("name", 253),
            public_key=fields.octets("key", PUBLIC_KEY_BYTES, PUBLIC_KEY_BYTES),
            nonce=fields.octets("nonce", NONCE_BYTES, NONCE_BYTES),
            software=fields.text("software", SOFTWARE_CHARS),
            session=_read_session(fields),
            limits=fields.limits("limits"),
            certificate=_read_certificate(fields),
            join=_read_join(fields),
        )
        if not is_name(claims.name):
            raise HandshakeMalformed(f"HELLO.name {claims.name!a} cannot name an agent")
        if (claims.certificate is None) == (claims.join is None):
            raise HandshakeMalformed("HELLO wants exactly one of certificate and join")
        return claims


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
    """Program and version the agent says it is; for logs only."""
    session: ResumeRequest | None
    limits: Mapping[str, int]
    certificate: AgentCertificate | None
    join: JoinProof | None


@dataclass(frozen=True, slots=True)
class WelcomeTerms:
    """What WELCOME says; the certificate still unchecked."""

    session_id: str
    generation: int
    limits: Mapping[str, int]
    certificate: bytes | None
    heartbeat_s: float
    resume_window_s: float
    received: int | None = None

    def to_body(self) -> bytes:
        """The JSON text."""
        certificate = self.certificate
        resumed = {} if self.received is None else {"received": self.received}
        return orjson.dumps(
            {
                "session": self.session_id,
                "generation": self.generation,
                "limits": dict(self.limits),
                "certificate": certificate and write_octets(certificate),
                "heartbeat_s": self.heartbeat_s,
                "resume_window_s": self.resume_window_s,
            }
            | resumed
        )

    @classmethod
    def from_body(cls, body: bytes) -> "WelcomeTerms":
        """Raises HandshakeMalformed."""
        fields = Fields.parse("WELCOME", body)
        return cls(
            session_id=fields.text("session", SESSION_ID_CHARS),
            generation=fields.integer("generation", 0),
            limits=fields.limits("limits"),
            certificate=_read_certificate(fields),
            heartbeat_s=fields.seconds("heartbeat_s", 0.1, HEARTBEAT_MAX_S),
            resume_window_s=fields.seconds("resume_window_s", 0, RESUME_WINDOW_MAX_S),
            received=fields.integer("received", 0) if fields.has("received") else None,
        )


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
    received: int | None = None
    """The session asked for goes on and the gateway has so many of its messages; None: a new one."""
    doubt: str = ""
    """The certificate's dates say that this host's clock is wrong, or the gateway's."""
    gateway_key: bytes = b""
    """The public key that the gateway proved itself with: one of those that were pinned."""


def reject_body(code: ErrorCode, reason: str, retry_after_s: float | None) -> bytes:
    """The JSON text of REJECT. The reason is cut at the limit and cleared of what no line should hold."""
    line = "".join(c if c.isprintable() else " " for c in reason)[: limits.REASON_CHARS] or "refused"
    if retry_after_s is not None:
        retry_after_s = min(max(retry_after_s, 0.0), RETRY_AFTER_MAX_S)
    return orjson.dumps({"code": int(code), "reason": line, "retry_after_s": retry_after_s})


def read_reject(body: bytes) -> HandshakeRejected:
    """The exception that a REJECT stands for. Raises HandshakeMalformed when it is none."""
    fields = Fields.parse("REJECT", body)
    return HandshakeRejected(
        code=ErrorCode.from_wire(fields.integer("code", 1, 0xFFFF)),
        reason=fields.text("reason", limits.REASON_CHARS),
        retry_after_s=(
            fields.seconds("retry_after_s", 0, RETRY_AFTER_MAX_S) if fields.has("retry_after_s") else None
        ),
    )


def join_statement(challenge_digest: bytes, public_key: bytes, nonce: bytes, name: str) -> bytes:
    """What a join proof signs (PROTOCOL §8.4): this conversation, and the key and name to be enrolled.

    So a proof seen on the wire enrols nobody else. ``challenge_digest`` is the transcript's digest after
    CHALLENGE.
    """
    name_digest = hashlib.sha256(name.encode("ascii")).digest()
    return _JOIN_DOMAIN + challenge_digest + public_key + nonce + name_digest


def _read_session(fields: Fields) -> ResumeRequest | None:
    if not fields.has("session"):
        return None
    inner = fields.inner("session")
    return ResumeRequest(inner.text("id", SESSION_ID_CHARS), inner.integer("received", 0))


def _read_join(fields: Fields) -> JoinProof | None:
    if not fields.has("join"):
        return None
    inner = fields.inner("join")
    return JoinProof(_matching(inner, "id", _TOKEN_ID), inner.octets("proof", PROOF_BYTES, PROOF_BYTES))


def _read_certificate(fields: Fields) -> bytes | None:
    return fields.octets("certificate", 1, CERTIFICATE_BYTES) if fields.has("certificate") else None


def _matching(fields: Fields, name: str, pattern: re.Pattern[str]) -> str:
    text = fields.text(name, 16)
    if pattern.fullmatch(text) is None:
        raise HandshakeMalformed(f"{name} {text!a} is not 16 hex digits")
    return text
