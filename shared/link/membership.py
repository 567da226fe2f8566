"""Who this agent is, and to which gateway it belongs: the state directory.

``agent.key`` is the agent's own key, made here and never sent. ``membership.json`` holds its name, the
SHA-256 of the gateway's key and the certificate the gateway issued (:mod:`shared.link.state_directory`). Both
are readable by their owner alone. One agent at once uses them (:mod:`shared.link.state_directory`).
"""

import secrets
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from shared.handshake import NONCE_BYTES, AgentHandshake, Challenge, Renewal, ResumeRequest, Welcome
from shared.identity import (
    AgentCertificate,
    JoinToken,
    KeyFileError,
    create_key_file,
    fingerprint_of,
    is_name,
    public_bytes,
    read_certificate,
)
from shared.identity.certificates import read_kept
from shared.identity.keys import gateway_id
from shared.link.state_directory import MemberRecord, make_state_directory
from shared.link.state_directory import MembershipError as MembershipError
from shared.protocol.credit import OWN_WINDOWS, own_limits
from shared.protocol.errors import CertificateInvalid, ErrorCode, HandshakeRejected, JoinTokenInvalid
from shared.protocol.frames import TunnelRole

log = structlog.get_logger("link.membership")

KEY_FILE = "agent.key"
MEMBERSHIP_FILE = "membership.json"


HOW_TO_JOIN = (
    "this agent has not joined a gateway yet: run `trunkline token create` on the gateway and "
    "give the token with --join, or in TRUNKLINE_AGENT_JOIN"
)


class Membership:
    """The agent's identity while it runs."""

    def __init__(
        self,
        directory: Path,
        key: Ed25519PrivateKey,
        name: str,
        record: MemberRecord | None,
        token: JoinToken | None,
        wall: Callable[[], float] = time.time,
        required: Sequence[str] = (),
        optional: Sequence[str] = (),
    ) -> None:
        """``required`` are capabilities that the gateway must have, ``optional`` such that it may have.
        ``wall`` gives Unix time, for the dates of certificates and of the gateway's keys."""
        self._wall = wall
        self._required_capabilities = required
        self._optional_capabilities = optional
        self._gateway_key = b""
        """What the gateway proved itself with on the latest tunnel; empty before the first."""
        self._directory = directory
        self._key = key
        self._record = record
        self._token = token
        self.joining = record is None
        """The next handshake shows the join token, not the certificate."""
        self._refused_for_now = False
        """The certificate was refused for now only: a clock is wrong."""
        self._unkept = False
        """The newest certificate is not on the disk yet."""
        self._earlier: AgentCertificate | None = None
        """Shown in place of the record's, which was refused for its dates."""
        self._untried: list[AgentCertificate] = []
        """To be shown after that one."""
        self._refusal: HandshakeRejected | None = None
        """What the gateway said of the record's certificate."""
        self.name = name

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        join: str | None,
        name: str | None,
        default_name: str,
        wall: Callable[[], float] = time.time,
        required: Sequence[str] = (),
        optional: Sequence[str] = (),
        how_to_join: str = HOW_TO_JOIN,
    ) -> "Membership":
        """``how_to_join`` says what to do without a membership and a token. ``name`` is the operator's wish.
        Without it a member keeps its name, and a new agent takes ``default_name``. Raises
        :class:`MembershipError`."""
        make_state_directory(directory)
        record = MemberRecord.read(directory / MEMBERSHIP_FILE)
        try:
            token = None if join is None else JoinToken.decode(join)
            key = create_key_file(directory / KEY_FILE)
        except (JoinTokenInvalid, KeyFileError) as error:
            raise MembershipError(str(error)) from error
        if record is None and token is None:
            raise MembershipError(how_to_join)
        if record is not None:
            _check(record, token, name, directory)
        known_as = record.name if record is not None else name or default_name
        return cls(directory, key, known_as, record, token, wall, required, optional)

    @property
    def gateway(self) -> str:
        """The short name of the gateway it belongs to."""
        fingerprint = self._record.fingerprint if self._record is not None else self._required.fingerprint
        return gateway_id(fingerprint)

    @property
    def joined(self) -> bool:
        return self._record is not None

    @property
    def has_spare_token(self) -> bool:
        """A join token was given that is not needed."""
        return self._token is not None and not self.joining

    @property
    def shows_earlier(self) -> bool:
        """The next handshake shows a certificate from before the newest."""
        return self._earlier is not None

    @property
    def _required(self) -> JoinToken:
        assert self._token is not None
        return self._token

    def handshake(
        self,
        software: str,
        session: ResumeRequest | None = None,
        landed: Callable[[Challenge], ResumeRequest | None] | None = None,
        sessions: int = 1,
    ) -> AgentHandshake:
        """A handshake for the next tunnel, which may resume ``session``, or what ``landed`` says when it is
        known where the tunnel leads. What a new session may hold of request bodies is its part of what so
        many ``sessions`` may. Raises MembershipError."""
        windows = OWN_WINDOWS[TunnelRole.AGENT].divided(sessions)
        record = None if self.joining else self._record
        earlier = None if record is None else self._earlier
        certificate = None if record is None else record.certificate
        pinned, *also_pinned = (None,) if record is None else record.pins(self._wall())
        try:
            handshake = AgentHandshake(
                self._key,
                self.name if earlier is None else earlier.name,
                secrets.token_bytes(NONCE_BYTES),
                certificate=certificate if earlier is None else earlier.der,
                join_token=self._required if record is None else None,
                pinned_fingerprint=pinned,
                software=software,
                limits=own_limits(windows).to_mapping(),
                session=session,
                also_pinned=also_pinned,
                landed=landed,
                required=self._required_capabilities,
                optional=self._optional_capabilities,
            )
        except ValueError as error:
            raise MembershipError(str(error)) from error
        handshake.windows = windows
        return handshake

    def welcomed(self, welcome: Welcome) -> bool:
        """Keep the certificate that came with WELCOME, if one did. True when this made us a member.

        Raises :class:`MembershipError` when it cannot be kept, which for a member is no reason to stop: it is
        in use all the same, and each later welcome tries to keep it again.
        """
        self._gateway_key = welcome.gateway_key
        self._keep_what_was_accepted()
        if (fresh := welcome.certificate) is not None:
            if self._record is None:
                self._set(MemberRecord(fresh.name, self._required.fingerprint, fresh.der))
            elif self.joining:
                self._set(self._record.showing(fresh))
            else:
                self._set(self._record.taking(fresh, self._wall()))
        self._keep()
        if welcome.certificate is None:
            return False
        was_joining, self.joining = self.joining, False
        return was_joining

    def _keep_what_was_accepted(self) -> None:
        """The gateway let us in with what was shown: that is what is shown from now on."""
        shown, self._earlier, self._untried, self._refusal = self._earlier, None, [], None
        if shown is not None and self._record is not None and not self.joining:
            log.warning("a certificate from before the newest did", valid_to_s=shown.not_after_s)
            self._set(self._record.showing(shown))

    def _set(self, record: MemberRecord) -> None:
        self._record, self.name, self._unkept = record, record.name, True

    def renew(self, renewal: Renewal) -> None:
        """Take what the gateway gives anew inside a session (PROTOCOL §8.6, §8.12), all or nothing: its next
        key, and a certificate for our key by a key that counts, maybe for another name.

        Raises HandshakeError for what is not to be believed. A disk that cannot keep it is logged, and each
        later welcome tries to keep it again.
        """
        record, wall_s = self._record, self._wall()
        if record is None:
            raise CertificateInvalid("this agent has not joined")
        issuers = [self._gateway_key]
        if renewal.succession is not None:
            record = record.succeeded(renewal.succession)
            issuers.append(renewal.succession.new_key)
        pins = record.pins(wall_s)
        issuers = [key for key in issuers if key and fingerprint_of(key) in pins]
        certificate = read_certificate(renewal.certificate, issuers)
        if certificate.public_key != public_bytes(self._key):
            raise CertificateInvalid("the certificate belongs to another key")
        if certificate.not_before_s < read_kept(record.certificate).not_before_s <= wall_s:
            raise CertificateInvalid("the certificate is older than the one held")
        former = self.name
        self._set(record.taking(certificate, wall_s))
        if self.name != former:
            log.warning("renamed by the gateway", name=self.name, former=former)
        try:
            self._keep()
        except MembershipError as error:
            log.warning("the renewed certificate cannot be kept", reason=str(error))

    def _keep(self) -> None:
        if self._unkept and self._record is not None:
            self._record.write(self._directory / MEMBERSHIP_FILE)
            self._unkept = False

    def try_otherwise(self, error: HandshakeRejected) -> bool:
        """The gateway said no. True when there is another way to try: for a certificate that is out of date
        one from before it that may not be; then, for one that is unknown, too, the join token, once. A token
        that does no better is forgotten, if the certificate may do later. Never after a revocation: a token
        that lies about in the environment must not undo it."""
        if error.code is not ErrorCode.UNAUTHENTICATED:
            return False
        if not self.joining and self._show_earlier(error):
            return True
        if self._token is None:
            return False
        if not self.joining:
            self._refused_for_now = self.verdict(error).retry_after_s is not None
            self.joining, self._refusal = True, None
            return True
        if self._refused_for_now:
            self.joining, self._token = False, None
            return True
        return False

    def _show_earlier(self, error: HandshakeRejected) -> bool:
        """Whether there is one to show next. One by one; then it is the record's turn again."""
        if self._earlier is None:
            self._refusal = error
            dated = self._record is not None and error.retry_after_s is not None
            self._untried = self._record.alternatives(self._wall()) if self._record and dated else []
        self._earlier = self._untried.pop(0) if self._untried else None
        return self._earlier is not None

    def verdict(self, error: HandshakeRejected) -> HandshakeRejected:
        """What the gateway says of this agent after the refusal ``error``: of a certificate from before the
        newest it may say what it likes, unless the agent is revoked."""
        if error.code is ErrorCode.UNAUTHENTICATED and self._refusal is not None:
            return self._refusal
        return error


def _check(record: MemberRecord, token: JoinToken | None, name: str | None, directory: Path) -> None:
    if token is not None and not record.knows(token.fingerprint):
        raise MembershipError(
            f"this agent belongs to gateway {gateway_id(record.fingerprint)}, but the join token is for "
            f"gateway {gateway_id(token.fingerprint)}. To serve both, give the second agent a --state of its "
            f"own; to leave the first for good, remove {directory / MEMBERSHIP_FILE}"
        )
    if name is not None and name not in (record.name, *record.former_names):
        raise MembershipError(
            f"this agent joined as {record.name!r} and cannot become {name!r}: leave --name away, or give "
            f"the other agent a --state of its own, or remove {directory / MEMBERSHIP_FILE} and join again"
        )


def default_name() -> str:
    """The host's name, brought to what a name may be."""
    letters = [
        c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in socket.gethostname().lower()
    ]
    name = "".join(letters).strip("._-")[:63]
    return name if is_name(name) else "agent"
