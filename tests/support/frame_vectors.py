"""Makes ``shared/protocol/vectors/frames.json``: ``python -m tests.support.frame_vectors``.

The bytes are put together here by hand, from PROTOCOL §3, and not by the code that they are to prove.
"""

from pathlib import Path
from typing import Any

import orjson

PATH = Path(__file__).parents[2] / "shared" / "protocol" / "vectors" / "frames.json"

HEAD = b'{"status":200,"headers":[["content-type","text/event-stream"]]}'
OPEN = (
    b'{"deployment":"d1","method":"POST","path":"/v1/chat/completions",'
    b'"headers":[["content-type","application/json"]],"model":"demo","request_id":"r1",'
    b'"streaming":true,"usage":"strip","tier":"standard","deadline_s":null,"credit":131072,"trace":null}'
)
OPEN_TO_GATEWAY = OPEN.removesuffix(b"}") + (
    b',"where":{"region":["eu","uk"]},"via":["0123456789abcdef","fedcba9876543210"]}'
)
UPLINK = (
    b'{"status":"READY","deployments":[{"id":"demo-5f0c2e1a","model":"demo","version":"v1","status":"loaded",'
    b'"routes":["chat"],"slots":8,"context_tokens":4096,"running":0,"waiting":0,"kv_use":null,'
    b'"reason":"","continues":{},"device":"NVIDIA L4","via":["fedcba9876543210"]}],"gpus":[],'
    b'"model_memory_bytes":null}'
)
MANAGED = (
    b'{"status":"READY","deployments":[{"id":"d1","model":"demo","version":"","status":"loaded",'
    b'"routes":["chat"],"slots":8,"context_tokens":4096,"running":0,"waiting":0,"kv_use":null,'
    b'"reason":"","continues":{}},{"id":"d2","model":"other","version":"","status":"loading",'
    b'"routes":["chat"],"slots":8,"context_tokens":null,"running":0,"waiting":0,"kv_use":null,'
    b'"reason":"","continues":{},"managed":true,"memory_bytes":15032385536,"load_s":41.5,'
    b'"load_progress":0.25,"kv_tokens":null}],"gpus":[],"model_memory_bytes":85899345920}'
)
EXPECTING = OPEN[:-1] + (
    b',"expected":{"input_tokens":812,"output_tokens":160,"prefix":"AQAAAAAAAAD//////////w=="}}'
)
OTHERS = (
    b'{"began":[{"number":7,"deployment":"d1","age_s":0.013,'
    b'"expected":{"input_tokens":812,"output_tokens":160,"prefix":"AQAAAAAAAAD//////////w=="}},'
    b'{"number":8,"deployment":"d2","age_s":31.5,"read":true}],"ended":[5]}'
)
ENGINES = (
    b'{"status":"FAILED","deployments":[],"gpus":[],"model_memory_bytes":null,"labels":{},"engines":['
    b'{"name":"127.0.0.1-8000","status":"failed","reason":"connection refused",'
    b'"load_progress":null,"loading_s":null,"load_s":null},'
    b'{"name":"torch","status":"loading","reason":"loading weights","kind":"trunkline",'
    b'"load_progress":0.25,"loading_s":6.0,"load_s":24.5}],"reason":"no engine serves"}'
)
UPGRADE = (
    b'{"deployment":"d1","method":"GET","path":"/v1/realtime?model=demo",'
    b'"headers":[["sec-websocket-protocol","realtime"]],"model":"demo","request_id":"r2",'
    b'"streaming":true,"usage":"none","tier":"standard","deadline_s":null,"credit":131072,"trace":null,'
    b'"upgrade":true}'
)
UPGRADES = (
    b'{"status":"READY","deployments":[{"id":"d1","model":"demo","version":"","status":"loaded",'
    b'"routes":["any"],"slots":8,"context_tokens":null,"running":0,"waiting":0,"kv_use":null,'
    b'"reason":"","continues":{},"upgrades":true}],"gpus":[],"model_memory_bytes":null}'
)
TRANSLATED = (
    b'{"status":"READY","deployments":[{"id":"d1","model":"demo","version":"","status":"loaded",'
    b'"routes":["chat","messages"],"slots":8,"context_tokens":null,"running":0,"waiting":0,"kv_use":null,'
    b'"reason":"","continues":{},"translated":["messages","messages/v1/messages/count_tokens"],'
    b'"capabilities":["tools","vision"]}],"gpus":[],"model_memory_bytes":null}'
)
WORK = (
    b'{"status":"READY","deployments":[{"id":"d1","model":"painting","version":"","status":"loaded",'
    b'"routes":["workflows"],"slots":1,"context_tokens":null,"running":0,"waiting":0,"kv_use":null,'
    b'"reason":"","continues":{},"capabilities":["text-to-image"],'
    b'"work":{"units":20.97152,"inputs":{"steps":20.0,"n":1.0}}}],"gpus":[],"model_memory_bytes":null}'
)
PROGRESS = b'{"fraction":0.4,"text":"step 12 of 30","preview":{"type":"image/png","data":"iVBORw0KGgo="}}'
FRAMES: list[tuple[str, int, int, bytes]] = [
    ("OPEN", 0x10, 1, OPEN),
    ("OPEN", 0x10, 1, EXPECTING),
    ("OPEN", 0x10, 1, OPEN_TO_GATEWAY),
    ("HEAD", 0x11, 1, HEAD),
    ("HEAD", 0x11, 1, b'{"status":200,"headers":[],"ran_by":"lab/gpu-1"}'),
    ("HEAD", 0x11, 1, b'{"status":429,"headers":[],"refusal":"busy"}'),
    ("DATA", 0x12, 1, b"data: {}\n\n"),
    ("END", 0x13, 1, b""),
    ("END", 0x13, 2, b'{"usage":{"prompt_tokens":3,"completion_tokens":2,"cached_tokens":0}}'),
    ("END", 0x13, 2, b'{"usage":null,"queue_s":0.0,"first_byte_s":0.5,"total_s":2.5,"gpu_s":0.625}'),
    (
        "END",
        0x13,
        3,
        b'{"usage":null,"queue_s":0.0,"first_byte_s":0.5,"total_s":2.5,'
        b'"ran_by":"gpu-1","device":"NVIDIA L4"}',
    ),
    ("RESET", 0x14, 4294967295, b"\x00\x07client gone"),
    ("CREDIT", 0x15, 0, bytes.fromhex("0000000002000000")),
    ("CREDIT", 0x15, 9, bytes.fromhex("0000000000040000")),
    ("OPEN", 0x10, 2, UPGRADE),
    ("HEAD", 0x11, 2, b'{"status":101,"headers":[["sec-websocket-protocol","realtime"]]}'),
    ("PROGRESS", 0x16, 2, PROGRESS),
    ("PROGRESS", 0x16, 2, b"{}"),
    ("STATE", 0x21, 0, UPGRADES),
    ("STATE", 0x21, 0, TRANSLATED),
    ("STATE", 0x21, 0, WORK),
    ("SLOTS", 0x20, 0, b'{"d1":8}'),
    ("STATE", 0x21, 0, b'{"status":"READY","deployments":[],"gpus":[],"model_memory_bytes":null}'),
    ("STATE", 0x21, 0, MANAGED),
    ("STATE", 0x21, 0, ENGINES),
    ("STATE", 0x21, 0, UPLINK),
    ("DEMAND", 0x22, 0, b'{"demo":3}'),
    ("DEMAND", 0x22, 0, b'{"demo":{"waiting":3,"realtime":1,"oldest_wait_s":0.5,"weight":2.0}}'),
    ("COMMAND", 0x23, 0, b'{"id":1,"verb":"load","deployment":"d2"}'),
    ("COMMAND", 0x23, 0, b'{"id":2,"verb":"unload","deployment":"d2","epoch":1795360993}'),
    ("RESULT", 0x24, 0, b'{"id":1,"ok":false,"error":"no room"}'),
    ("DRAIN", 0x25, 0, b'{"reason":"upgrade","deadline_s":30.0,"gateways":[]}'),
    (
        "PEERS",
        0x26,
        0,
        b'{"peers":[{"process":"a","incarnation":3},'
        b'{"process":"b","incarnation":1,"url":"wss://b.example"}]}',
    ),
    ("OTHERS", 0x27, 0, OTHERS),
    ("OTHERS", 0x27, 0, b'{"first":[7,8],"ended":[6]}'),
    ("PING", 0x30, 0, bytes.fromhex("00000000000f4240")),
    ("PONG", 0x31, 0, bytes.fromhex("00000000000f4240")),
    ("ACK", 0x32, 0, bytes.fromhex("0000000000000040")),
    ("CLOSE", 0x33, 0, b"\x00\x0dstopping"),
]


def frame_bytes(frame_type: int, stream: int, payload: bytes) -> bytes:
    """PROTOCOL §3.1."""
    return bytes([frame_type]) + stream.to_bytes(4, "big") + len(payload).to_bytes(4, "big") + payload


DATA = frame_bytes(0x12, 1, b"x")
ACK = frame_bytes(0x32, 0, bytes(8))
MALFORMED: list[tuple[str, bytes, str]] = [
    ("no frame", b"", "PROTOCOL_ERROR"),
    ("ends inside a header", DATA[:8], "PROTOCOL_ERROR"),
    ("ends inside a payload", DATA[:-1], "PROTOCOL_ERROR"),
    ("unknown type", frame_bytes(0x7F, 0, b""), "PROTOCOL_ERROR"),
    ("DATA on stream 0", frame_bytes(0x12, 0, b"x"), "PROTOCOL_ERROR"),
    ("DATA without a byte", frame_bytes(0x12, 1, b""), "PROTOCOL_ERROR"),
    ("DATA longer than 16 KiB", frame_bytes(0x12, 1, bytes(16385)), "FRAME_TOO_LARGE"),
    ("PING on a stream", frame_bytes(0x30, 1, bytes(8)), "PROTOCOL_ERROR"),
    ("CREDIT of nine bytes", frame_bytes(0x15, 1, bytes(9)), "FRAME_TOO_LARGE"),
    ("numbered and link frames together", DATA + ACK, "PROTOCOL_ERROR"),
    ("longer than 64 KiB", DATA * 6554, "FRAME_TOO_LARGE"),
    ("PROGRESS longer than 24 KiB", frame_bytes(0x16, 1, bytes(24577))[:9], "FRAME_TOO_LARGE"),
    ("PROGRESS on stream 0", frame_bytes(0x16, 0, b"{}"), "PROTOCOL_ERROR"),
]


def piece(first_byte: int, rest: bytes) -> bytes:
    """PROTOCOL §5.5."""
    return bytes([first_byte]) + len(rest).to_bytes(2, "big") + rest


UPGRADED: list[tuple[str, bytes, list[dict[str, Any]] | None]] = [
    (
        "a text, a binary message in two pieces, an empty text, and the end",
        piece(0x81, "hé".encode())
        + piece(0x02, b"\x00\x01")
        + piece(0x80, b"\xff")
        + piece(0x81, b"")
        + piece(0x88, b"\x03\xe8done"),
        [
            {"kind": "TEXT", "final": True, "data": "68c3a9"},
            {"kind": "BINARY", "final": False, "data": "0001"},
            {"kind": "CONTINUATION", "final": True, "data": "ff"},
            {"kind": "TEXT", "final": True, "data": ""},
            {"kind": "CLOSE", "code": 1000, "reason": "done"},
        ],
    ),
    ("an end without a code", piece(0x88, b""), [{"kind": "CLOSE", "code": 1005, "reason": ""}]),
    ("a continuation of nothing", piece(0x80, b"x"), None),
    ("a message inside another", piece(0x01, b"x") + piece(0x81, b"y"), None),
    ("a kind that there is not", piece(0x89, b""), None),
    ("a reserved bit", piece(0xC1, b"x"), None),
    ("a piece longer than 16 KiB", piece(0x82, bytes(16385))[:3], None),
    ("an end of one byte", piece(0x88, b"\x03"), None),
    ("an end with a code that is never sent", piece(0x88, b"\x03\xee"), None),
    ("an end that is not the last of a message", piece(0x08, b""), None),
    ("something behind the end", piece(0x88, b"") + piece(0x81, b""), None),
]


def make() -> bytes:
    """The file's content."""
    vectors: dict[str, Any] = {
        "frames": [
            {"name": name, "type": t, "stream": s, "payload": p.hex(), "bytes": frame_bytes(t, s, p).hex()}
            for name, t, s, p in FRAMES
        ],
        "messages": [
            {"kind": "numbered", "frames": 2, "bytes": (DATA + frame_bytes(0x13, 1, b"")).hex()},
            {"kind": "link", "frames": 2, "bytes": (ACK + frame_bytes(0x30, 0, bytes(8))).hex()},
        ],
        "malformed": [
            {"what": what, "unit": unit.hex(), "times": len(data) // max(len(unit), 1), "code": code}
            for what, data, code in MALFORMED
            for unit in (DATA if len(data) > 60_000 else data,)
        ],
        "upgraded": [
            {"what": what, "bytes": data.hex(), "pieces": pieces} for what, data, pieces in UPGRADED
        ],
    }
    return orjson.dumps(vectors, option=orjson.OPT_INDENT_2) + b"\n"


if __name__ == "__main__":
    PATH.write_bytes(make())
