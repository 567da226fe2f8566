"""Every error of the tunnel protocol, with its wire code (PROTOCOL §9).

The tree::

    TrunklineError
    ├── ProtocolError               the peer broke the protocol: the tunnel ends
    │   ├── FrameMalformed
    │   ├── FrameTooLarge
    │   ├── MessageTooLarge
    │   ├── UnexpectedFrame
    │   ├── FlowControlViolated
    │   ├── StreamStateError        a frame its stream's state does not allow
    │   ├── StreamLimitExceeded
    │   └── ControlFrameFlood       far more frames without a body than any session needs
    ├── PieceMalformed              the body of an upgraded stream does not parse: the stream ends
    ├── HandshakeError
    │   ├── HandshakeMalformed      a payload that does not parse or comes out of turn
    │   ├── HandshakeRejected       the other side said no, with a code and a reason
    │   ├── GatewayUntrusted        not the gateway whose key was pinned
    │   ├── SignatureInvalid
    │   ├── CertificateInvalid
    │   │   └── CertificateOutOfDate    good but for the dates: a clock is wrong, or it is old
    │   └── JoinTokenInvalid
    ├── TunnelError
    │   ├── DialFailed              no connection, no TLS, no WebSocket
    │   │   └── DialMisdirected         another process of the gateway answered (421)
    │   ├── TunnelClosed
    │   ├── HeartbeatLost
    │   ├── ResumeRefused
    │   └── InternalTrouble
    └── LocalError                  our own side did what it may not: nothing was sent
        ├── SessionClosed
        ├── StreamHalfClosed
        ├── TooManyStreams
        ├── HeadTooLarge
        └── SendBufferFull
"""

from enum import IntEnum

CLOCK_RETRY_S = 60.0
"""An agent that was refused because of a wrong clock dials again after this: clocks are mostly corrected
within minutes."""


class ErrorCode(IntEnum):
    """Wire codes carried by RESET, CLOSE and REJECT (PROTOCOL §9)."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL = 2
    FLOW_CONTROL = 3
    FRAME_TOO_LARGE = 4
    STREAM_STATE = 5
    REFUSED = 6
    """The engine never saw the request: always safe to give to another deployment."""
    CANCELLED = 7
    """The client has left, so the answer is not needed any more."""
    DEADLINE = 8
    ENGINE_UNREACHABLE = 9
    """The engine could not be connected to; it never saw the request."""
    ENGINE_FAILED = 10
    """The engine died in the middle of its answer or answered what is no HTTP."""
    ENGINE_TIMEOUT = 11
    SESSION_LOST = 12
    """Local only, never sent: the session ended under the stream."""
    DRAINING = 13
    UNAUTHENTICATED = 14
    REVOKED = 15
    OVERLOADED = 16
    TOO_LARGE = 17
    REPLACED = 18
    """A newer tunnel of the same agent took over."""
    VERSION = 19
    """No protocol version in common."""
    DECLINED = 20
    """No engine saw the request, and the same agent would not take it later either: another one may."""

    @classmethod
    def from_wire(cls, code: int) -> "ErrorCode":
        """The code for a number off the wire; unknown numbers read as INTERNAL (PROTOCOL §9)."""
        try:
            return cls(code)
        except ValueError:
            return cls.INTERNAL


class TrunklineError(Exception):
    """Any documented error. ``code`` is sent to the other side."""

    code: ErrorCode = ErrorCode.INTERNAL


class ProtocolError(TrunklineError):
    """The peer broke the protocol. The tunnel cannot go on."""

    code = ErrorCode.PROTOCOL_ERROR


class FrameMalformed(ProtocolError):
    """A frame or message whose bytes do not parse (PROTOCOL §3, §4)."""


class FrameTooLarge(ProtocolError):
    """A frame's payload exceeds the limit of its type (PROTOCOL §3.2)."""

    code = ErrorCode.FRAME_TOO_LARGE

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(f"frame payload of {size_bytes} bytes, limit {limit_bytes}")


class MessageTooLarge(ProtocolError):
    """A WebSocket message exceeds the limit (PROTOCOL §2.3)."""

    code = ErrorCode.FRAME_TOO_LARGE


class UnexpectedFrame(ProtocolError):
    """A frame that its receiver's role or state does not allow (PROTOCOL §4)."""


class FlowControlViolated(ProtocolError):
    """The peer sent bytes beyond its credit, or moved credit backwards (PROTOCOL §6)."""

    code = ErrorCode.FLOW_CONTROL


class StreamStateError(ProtocolError):
    """A frame that its stream's state does not allow (PROTOCOL §5.3)."""

    code = ErrorCode.STREAM_STATE


class StreamLimitExceeded(ProtocolError):
    """The peer opened more streams than were allowed (PROTOCOL §5.1)."""


class ControlFrameFlood(ProtocolError):
    """The peer sent more control frames than its rate allows (PROTOCOL §2.6)."""


class PieceMalformed(TrunklineError):
    """What is no message in the body of an upgraded stream (PROTOCOL §5.5). Only the stream ends."""

    code = ErrorCode.PROTOCOL_ERROR


class HandshakeError(TrunklineError):
    """The handshake failed (PROTOCOL §8)."""

    code = ErrorCode.UNAUTHENTICATED
    retry_after_s: float | None = None
    """When to try again as is; None when that cannot help."""


class HandshakeMalformed(HandshakeError):
    """A handshake payload that does not parse, is out of bounds or comes out of turn (PROTOCOL §8.2)."""

    code = ErrorCode.PROTOCOL_ERROR


class GatewayUntrusted(HandshakeError):
    """The gateway's key is not the one pinned at enrolment or named by the join token (PROTOCOL §8.3)."""


class HandshakeRejected(HandshakeError):
    """One side said no. ``retry_after_s`` is None when trying again as is cannot help."""

    def __init__(self, code: ErrorCode, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.retry_after_s = retry_after_s


class SignatureInvalid(HandshakeError):
    """A handshake frame's signature does not verify."""


class CertificateInvalid(HandshakeError):
    """A certificate that is not ours, not yet or no longer valid, or of another key."""


class CertificateOutOfDate(CertificateInvalid):
    """Ours in every respect, but not valid at this time. Dates are in seconds since 1970."""

    retry_after_s = CLOCK_RETRY_S

    def __init__(self, message: str, name: str, not_before_s: int, not_after_s: int) -> None:
        super().__init__(message)
        self.name = name
        self.not_before_s = not_before_s
        self.not_after_s = not_after_s


class JoinTokenInvalid(HandshakeError):
    """A join token that does not parse or does not belong to this gateway."""


class TunnelError(TrunklineError):
    """The connection under a session."""


class DialFailed(TunnelError):
    """No tunnel could be made: no route, no TLS, no WebSocket at the other end."""


class DialMisdirected(DialFailed):
    """What answered serves other names than that of the path (421), as other processes of the gateway do."""


class TunnelClosed(TunnelError):
    """The tunnel ended. ``code`` says why when the peer said so."""

    def __init__(self, reason: str, code: ErrorCode = ErrorCode.NO_ERROR) -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code


class HeartbeatLost(TunnelError):
    """Nothing was heard from the peer for the heartbeat's limit (PROTOCOL §7.2)."""


class ResumeRefused(TunnelError):
    """A session cannot go on: the peer says it has other messages than it can have (PROTOCOL §7.4)."""


class InternalTrouble(TunnelError):
    """A program of our own failed in the middle of a session, which cannot go on."""


class LocalError(TrunklineError):
    """Our own side did something it may not. Nothing was sent."""


class SessionClosed(LocalError):
    """The session is over; nothing can be sent on it."""

    def __init__(self) -> None:
        super().__init__("the session is over")


class StreamHalfClosed(LocalError):
    """Our half of the stream is over; nothing more can be sent on it."""


class TooManyStreams(LocalError):
    """The session has as many open streams as the peer allows."""


class HeadTooLarge(LocalError):
    """A request's head is more than a frame carries (PROTOCOL §3.2)."""


class SendBufferFull(LocalError):
    """More was given to a stream than its send buffer holds; wait for ``on_writable``."""
