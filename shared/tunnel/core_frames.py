"""WebSocket frames that come by way of the library's core: messages in pieces, and control frames."""

from websockets.frames import Frame, Opcode

from shared.protocol import limits
from shared.protocol.control_frames import ControlFrameLimiter, control_frame_units
from shared.protocol.errors import UnexpectedFrame


class CoreFrames:
    """The frames of one WebSocket that are no whole message, or came while the core was needed.

    Control frames and short pieces are counted, so that no peer can occupy the event loop with them.
    """

    def __init__(self, now: float) -> None:
        self._fragments = bytearray()
        self._control_frames = ControlFrameLimiter(now)

    def take(self, frame: Frame, now: float) -> bytes | None:
        """The message that ``frame`` completes, if it does.

        Raises :class:`UnexpectedFrame` for text, :class:`~shared.protocol.errors.ControlFrameFlood`.
        """
        if frame.opcode is Opcode.BINARY and frame.fin:
            return bytes(frame.data)
        if frame.opcode is Opcode.BINARY or frame.opcode is Opcode.CONT:
            if not frame.fin and len(frame.data) < limits.FRAGMENT_BYTES:
                self._control_frames.spend(control_frame_units(len(frame.data)), now)
            self._fragments += frame.data
            if frame.fin:
                message = bytes(self._fragments)
                self._fragments.clear()
                return message
        elif frame.opcode is Opcode.TEXT:
            raise UnexpectedFrame("text message")
        else:
            self._control_frames.spend(control_frame_units(len(frame.data)), now)
        return None
