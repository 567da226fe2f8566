"""Every bound and default of the protocol: the unit in the name, the reason beside it (PROTOCOL §10)."""

KIB = 1024
MIB = 1024 * KIB

# --- Frames and messages (PROTOCOL §2, §3) ---

FRAME_HEADER_BYTES = 9
"""type u8, stream id u32, payload length u32."""

DATA_PAYLOAD_BYTES = 16 * KIB
"""Longest DATA payload. At 10 Mbit/s it occupies the line for 13 ms, so one stream cannot hog it."""

CONTROL_PAYLOAD_BYTES = 48 * KIB
"""Longest payload of any other frame: 32 KiB of HTTP headers after JSON quoting, or the state of about
200 deployments."""

MESSAGE_BYTES = 64 * KIB
"""Longest message. It holds the longest frame, four full DATA frames, or some 300 token frames; long enough
that the cost of a message is spread thin, short enough to be written before the next token is due."""

HANDSHAKE_MESSAGE_BYTES = 32 * KIB
"""Longest message before the peer is authenticated: strangers may make us hold this much and no more."""

HANDSHAKE_TIMEOUT_S = 5.0
"""Time a stranger has from the first byte to WELCOME: three round trips on a bad line, and some."""

UPGRADE_REQUEST_BYTES = 32 * KIB
"""Longest HTTP request head of a WebSocket upgrade."""

# --- Byte credit (PROTOCOL §6) ---

STREAM_WINDOW_BYTES = 128 * KIB
"""What a gateway grants a response at first, while memory lasts: 10 Mbit/s at 100 ms round trip without a
pause."""

STREAM_WINDOW_FLOOR_BYTES = 16 * KIB
"""What every response is granted whatever the others hold: about 80 tokens, four seconds of a fast stream."""

UPLOAD_WINDOW_BYTES = 256 * KIB
"""What an agent grants a request body at first, while memory lasts: bodies come in bulk, engines read them at
once."""

UPLOAD_WINDOW_FLOOR_BYTES = 32 * KIB
"""What every request body may send before any CREDIT: a prompt of some 8,000 tokens leaves without waiting;
for a longer one a round trip is little beside its prefill."""

STREAM_WINDOW_MAX_BYTES = 4 * MIB
"""Where the growth of one stream's window ends: 330 Mbit/s at 100 ms round trip."""

SESSION_WINDOW_BYTES = 32 * MIB
"""All that a gateway may have to hold of one session's responses: the floor for 1,024 streams (16 MiB),
12 MiB that the fast streams share, and an eighth of slack. A stream's window is a reservation in it
(PROTOCOL §6.3)."""

UPLOAD_SESSION_WINDOW_BYTES = 64 * MIB
"""The same for an agent and request bodies: 32 MiB of floors, 24 MiB to share, an eighth of slack."""

CREDIT_MAX = 2**62
"""No offset in a stream gets here; a peer that says so is broken."""

INTERACTIVE_BYTES = 64 * KIB
"""A body that is no token stream travels as interactive up to here and as bulk from here on."""

SEND_BUFFER_BYTES = 64 * KIB
"""What a sender may keep of one stream's body before its writer must wait: four DATA frames."""

SEND_BUFFER_LOW_BYTES = 16 * KIB
"""The writer is called again when this little is left: one DATA frame, so the line never runs dry."""

# --- Sessions and streams (PROTOCOL §5, §7) ---

OPEN_STREAMS = 1024
"""Streams open at once in one session."""

STREAM_ID_MAX = 2**32 - 1

HEARTBEAT_S = 10.0
"""A PING goes out when nothing was received for this long."""

SELDOM_HEARTBEAT_S = 30.0
"""The same of a gateway to an agent that it hears all the while, because the agent sends PINGs itself. It has
a thousand of them, and the round trip, which is what such a PING is for, seldom changes."""

HEARD_WITHIN_S = HEARTBEAT_S + 1.0
"""An agent that has not been heard for so long is late with its PING, so the gateway sends its own."""

DEAD_AFTER_S = 30.0
"""No byte for this long: the tunnel is dead and its socket is aborted. Three heartbeats, so that one lost
packet's retransmission does not end a session."""

SILENT_AFTER_S = 3.0
"""Something was sent that the peer answers at once, and no byte came for this long: the tunnel is silent. An
ACK is held back for 1 s at most; what is left covers retransmissions on a bad line."""

SILENT_MOST_S = 10.0
"""A tunnel silent for this long is given up and another one dialled. The session goes on there, so a wrong
guess costs a handshake, while a dead socket costs everybody on it what is left of the heartbeat's 30 s; and a
line that comes back carries a new connection sooner than TCP tries an old one again."""

LATE_S = 1.0
"""A deadline met later than this says that our own program stood still: the peer cannot have been heard, and
is given another heartbeat's time."""

RESUME_WINDOW_S = 30.0
"""How long a session is kept without a tunnel: a router's restart, another network, a laptop's nap."""

ACK_MESSAGES = 64
"""Numbered messages received before an ACK is due at once."""

ACK_BYTES = 512 * KIB
"""Bytes of numbered messages received before an ACK is due at once: an eighth of what the sender retains."""

ACK_DELAY_S = 1.0
"""The longest an ACK is held back. An agent with a few slow streams sends a message per token; to answer each
would cost both ends more than the token. What stays retained meanwhile is little: more has an ACK at once."""

GATEWAY_ACK_DELAY_S = 2.5
"""The same at a gateway, which has a thousand such agents. An agent gives a tunnel up after ``SILENT_MOST_S``
without a byte, and does nothing at ``SILENT_AFTER_S``."""

RETAINED_BYTES = 4 * MIB
"""Numbered messages sent and not acknowledged. Full, the sender stops: it is the replay memory of a session
and bounds what can be lost in a dead socket."""

CONTROL_FRAMES_BURST = 1000
"""Units of control frames that an agent may spend at once: a frame is one unit, and one more for every 256
bytes of its payload. The longest state is 193 units, so this is five of them; agents keep to half of that."""

CONTROL_FRAMES_PER_S = 200
"""Units of control frames that an agent earns back: its whole state and its slots several times a second. A
unit costs the gateway 5 to 30 microseconds, and up to 170 where a SLOTS changes 256 levels, so an agent that
spends all it earns takes 3.5 % of a core at the most."""

CONTROL_FRAME_UNIT_BYTES = 256

SLOTS_UNITS = 8
"""Most that a SLOTS costs, however long it is. An agent sends them with requests, not at a rate that it
chooses, and their length does not say what they cost: 256 levels that all change take 1.3 milliseconds,
whether they have 2 KiB or 48."""

CONTROL_FRAMES_PER_STREAM = 24
"""Units that an agent earns with each stream the gateway opens and each COMMAND it sends: three SLOTS. An
engine with several deployments sends its slots again when a request begins and when it ends."""

OTHERS_UNITS_PER_S = 400
"""Units more that an agent earns in a second where it sends OTHERS (PROTOCOL §4.11): fifty frames in a
second, and 90 KB of requests, which are some hundreds that begin and end."""

OTHERS_UNITS = 1500
"""Units more that it may keep: what it sent in more than three seconds may come at once after a line stood
still."""

PROGRESS_UNITS = 200
"""Units of PROGRESS that an agent spends at once in a session: 50 KB, which are 40 ms of a line of 10 Mbit/s.
Only what nobody waits for is so long."""

PROGRESS_UNITS_PER_S = 400
"""Units that it earns in a second: 100 KB, an eighth of such a line."""

PROGRESS_UNITS_TAKEN = 8000
"""Units of PROGRESS that a gateway takes at once. What an agent sent in 16 s may come together after a line
stood still; by then it is given up (``SILENT_MOST_S``)."""

PROGRESS_UNITS_TAKEN_PER_S = 800
"""Units that a gateway takes in a second: twice what an agent sends that keeps to its own."""

CREDIT_STEP_BYTES = 1 * KIB
"""A CREDIT that allows less than this more counts as a control frame. Credit is granted again at half a
window, of 16 KiB at the least."""

FRAGMENT_BYTES = 512
"""A piece of a fragmented WebSocket message that is shorter than this counts as a control frame. Proxies that
fragment do so at the size of their buffers, which are larger."""

INPUT_SLICE_BYTES = 16 * KIB
"""What is parsed of a tunnel's input before what it holds is counted: 2,700 of the shortest WebSocket frames.
It is also the size at which parsing is cheapest."""

# --- The socket (PROTOCOL §2.4) ---

SOCKET_BUFFER_BYTES = 8 * KIB
"""What is handed to the transport before the socket takes it, at most one turn more, and what the kernel
keeps unsent (TCP_NOTSENT_LOWAT) before it takes no more. Everything behind it can still be overtaken by a
more urgent frame; at 10 Mbit/s these are 7 ms. With 32 and 16 KiB instead, the 99th-percentile gap between
tokens beside a saturating response was 3.2 times the undisturbed one, with these 2.0. It grows on a line
that is fast (:mod:`shared.tunnel.write_buffer`)."""

# --- What a peer may say (PROTOCOL §4) ---

PROGRESS_PAYLOAD_BYTES = 24 * KIB
"""Longest PROGRESS: the longest preview in base64, and the longest text of control characters in JSON."""

PREVIEW_BYTES = 16 * KIB
"""Longest preview: a JPEG of 256 by 256 pixels. As PROGRESS is a control frame, it delays tokens by 18 ms on
a line of 10 Mbit/s."""

PROGRESS_TEXT_CHARS = 200
"""Longest text of PROGRESS: a line."""

MEDIA_TYPE_CHARS = 63
"""Longest media type of a preview."""

PIECE_BYTES = 16 * KIB
"""Longest piece of a message of an upgraded stream. A reader holds a piece until it is whole, and never a
message, so messages may be of any length."""

CLOSE_REASON_BYTES = 123
"""Longest reason that a WebSocket is closed with (RFC 6455 §5.5)."""

HEADERS = 128
"""Header fields of one request or response."""

HEADER_BYTES = 32 * KIB
"""Names and values of one request's or response's header fields together."""

DEPLOYMENTS = 256
"""Deployments of one agent."""

PEERS = 64
"""Processes of one gateway that it names to an agent, of which the agent has a session with half at most."""

PEER_SESSIONS = 32
"""Processes of one gateway that an agent holds sessions with. Each costs it a tunnel and a share of the
memory for request bodies, and with more a slot would seldom be where a request is."""

PEER_URL_CHARS = 200
"""Longest address of a process: with it 64 processes fit into WELCOME beside a certificate."""

CAPABILITY_CHARS = 32
"""Longest name of a capability, of a side or of a model."""

MODEL_CAPABILITIES = 16
"""Capabilities of one model: twice what any engine says."""

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""The upper bounds by which an engine's batches are counted; one count more is of those beyond the last."""

CAPABILITIES = 32
"""Capabilities that one side may name: ten times what version 1 has."""

OTHERS_EVERY_S = 0.02
"""An agent tells a process what runs for the others no more often than this: 16 simulated gateways that are
told so choose as well as one that sees all (``docs/simulated.md``)."""

OTHERS_BYTES = 16 * KIB
"""About how much is said in one OTHERS, so that the frame delays no other for long; five prefixes of the
longest kind."""

OTHERS_BEGAN = 1024
"""Requests that one OTHERS says began."""

OTHERS_NUMBERS = 4096
"""Requests that one OTHERS says have their first token, or have ended."""

OTHERS_RUNNING = 16_384
"""Requests of other processes that an agent may say run: 16 sessions with all the streams they may have."""

EXPECTED_TOKENS = 1 << 24
"""Most tokens of a prompt or an answer that a gateway says it expects: more than any context has."""

EXPECTED_FINGERPRINTS = 256
"""Fingerprints of one prompt that a gateway says: of 256 KiB of text, some 65,000 tokens, in 2.7 KB."""

LABELS = 32
"""Labels of an agent: what its identity has, and what it says of itself."""

LABEL_CHARS = 63
"""Longest label name or value, as Kubernetes has it."""

COMMANDS = 64
"""COMMAND and RESULT frames waiting to be sent."""

LINK_FRAMES = 64
"""PINGs and PONGs waiting to be sent."""

GPUS = 64
"""GPUs of one host."""

ENGINES = 64
"""Engines of one agent that it tells the state of."""

MODEL_NAME_CHARS = 256

HOPS = 4
"""Gateways that a request passes through at most. A path of more is hard to reason about, and each of them
holds what it carries."""

RAN_BY_CHARS = 320
"""Five names with slashes between."""

DEVICE_CHARS = 512
"""Names of the GPUs of one deployment."""

WHERE_LABELS = 64
"""Labels, and values of each, that OPEN names as a place where a request may run."""

REASON_CHARS = 512
"""Longest reason in RESET, CLOSE and the like; longer ones are cut by their sender."""
