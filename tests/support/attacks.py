"""What may be tried at the gateway's port, and what comes of it: one table for tests and docs."""

from dataclasses import dataclass

KEY = b"<KEY>"
"""Stands for a good key."""

_AUTH = b"host: x\r\nauthorization: Bearer <KEY>\r\n"
_BODY = b'{"model":"nobody/has-this"}'
_SMUGGLED = b"GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Attack:
    """``sent`` goes to a fresh connection; one answer with ``status`` comes back, and if ``closes`` the
    connection is closed then."""

    group: str
    name: str
    sent: bytes
    status: int
    closes: bool = True


def _post(
    *lines: bytes, body: bytes = _BODY, path: bytes = b"/v1/chat/completions", version: bytes = b"1.1"
) -> bytes:
    head = b"POST %b HTTP/%b\r\n" % (path, version)
    return head + _AUTH + b"".join(line + b"\r\n" for line in lines) + b"\r\n" + body


def _get(path: bytes, *lines: bytes, auth: bytes = _AUTH) -> bytes:
    return b"GET %b HTTP/1.1\r\n" % path + auth + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


def _length(body: bytes = _BODY) -> bytes:
    return b"content-length: %d" % len(body)


_CHUNKED = b"transfer-encoding: chunked"
_CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(_BODY), _BODY)
_HIDDEN = b"0\r\n\r\n" + _SMUGGLED


def _framing() -> list[Attack]:
    """Bodies whose end two readers could see in different places."""
    shapes = {
        "Content-Length and Transfer-Encoding": ((b"content-length: 5", _CHUNKED), _HIDDEN),
        "Transfer-Encoding and Content-Length": ((_CHUNKED, b"content-length: 5"), _HIDDEN),
        "two Content-Lengths that differ": ((b"content-length: 5", b"content-length: 50"), _HIDDEN),
        "two Content-Lengths that agree": ((_length(), _length()), _BODY),
        "a list as Content-Length": ((b"content-length: 27, 27",), _BODY),
        "Content-Length with a sign": ((b"content-length: +27",), _BODY),
        "Content-Length in hexadecimal": ((b"content-length: 0x1b",), _BODY),
        "Content-Length beyond 64 bits": ((b"content-length: 99999999999999999999",), _BODY),
        "Content-Length without a value": ((b"content-length: ",), _BODY),
        "Transfer-Encoding: xchunked": ((b"transfer-encoding: xchunked",), _CHUNKS),
        "Transfer-Encoding: chunked, identity": ((b"transfer-encoding: chunked, identity",), _CHUNKS),
        "Transfer-Encoding: identity": ((b"transfer-encoding: identity",), _CHUNKS),
        "Transfer-Encoding: gzip, chunked": ((b"transfer-encoding: gzip, chunked",), _CHUNKS),
        "Transfer-Encoding twice": ((b"transfer-encoding: identity", _CHUNKED), _CHUNKS),
        "Transfer-Encoding in quotes": ((b'transfer-encoding: "chunked"',), _CHUNKS),
        "Transfer-Encoding after a vertical tab": ((b"transfer-encoding: \x0bchunked",), _CHUNKS),
        "a blank before the colon": ((b"transfer-encoding : chunked",), _CHUNKS),
        "Transfer-Encoding on a folded line": ((b"transfer-encoding:\r\n chunked",), _CHUNKS),
        "a chunk longer than it says": ((_CHUNKED,), b"5\r\n123456789\r\n0\r\n\r\n" + _SMUGGLED),
        "a chunk's size with 0x": ((_CHUNKED,), b"0x5\r\n12345\r\n0\r\n\r\n"),
        "a chunk's size below zero": ((_CHUNKED,), b"-5\r\n12345\r\n0\r\n\r\n"),
        "a chunk's size beyond 64 bits": ((_CHUNKED,), b"fffffffffffffffff\r\n12345\r\n0\r\n\r\n"),
        "chunks with bare line feeds": ((_CHUNKED,), b"5\n12345\n0\n\n"),
        "a line feed in a chunk extension": ((_CHUNKED,), b"5;a\nb\r\n12345\r\n0\r\n\r\n"),
    }
    found = [Attack("framing", name, _post(*lines, body=body), 400) for name, (lines, body) in shapes.items()]
    old = _post(_CHUNKED, body=_CHUNKS, version=b"1.0")
    trailer = b"%x\r\n%b\r\n0\r\nx-model: other\r\nauthorization: Bearer x\r\n\r\n" % (len(_BODY), _BODY)
    return [
        *found,
        Attack("framing", "chunks in HTTP/1.0", old, 400),
        Attack(
            "framing",
            "a key and a model among the trailers: not read",
            _post(_CHUNKED, b"connection: close", body=trailer),
            404,
        ),
        Attack(
            "framing",
            "a request behind one that said Connection: close",
            _get(b"/healthz", b"connection: close") + _SMUGGLED,
            200,
        ),
        Attack(
            "framing",
            "a request as the body of an upgrade",
            _post(b"connection: upgrade", b"upgrade: h2c", _length(_SMUGGLED), body=_SMUGGLED),
            400,
        ),
    ]


def _heads() -> list[Attack]:
    """Heads that are malformed, ambiguous or too large."""
    fields = {
        "a folded line": b"x: a\r\n b",
        "a bare line feed": b"x: a\ny: b",
        "a bare carriage return": b"x: a\ry: b",
        "NUL in a value": b"x: a\0b",
        "NUL in a name": b"x\0: b",
        "a control character": b"x: \x01",
        "a blank in a name": b"x y: b",
        "no name": b": b",
        "a second Host": b"host: y",
        "a second key": b"authorization: Bearer other",
        "two content codings": b"content-encoding: identity\r\ncontent-encoding: gzip",
    }
    found = [Attack("heads", name, _get(b"/v1/models", line), 400) for name, line in fields.items()]
    bare = b"GET /healthz HTTP/1.1\n" + b"host: x\n\n"
    return [
        *found,
        Attack("heads", "line feeds alone", bare, 400),
        Attack("heads", "no Host", _get(b"/healthz", auth=b""), 400),
        Attack("heads", "HTTP/2's preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        Attack(
            "heads", "TLS to a plain port", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32), 400
        ),
        Attack("heads", "a method nobody knows", b"HACK / HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        Attack("heads", "a header of 70 kB", _get(b"/healthz", b"x: " + b"a" * 70_000), 431),
        Attack("heads", "a path of 70 kB", _get(b"/" + b"a" * 70_000), 431),
        Attack("heads", "300 headers", _get(b"/healthz", *(b"x%d: y" % n for n in range(300))), 431),
        Attack(
            "heads",
            "200 headers, for an engine",
            _post(_length(), *(b"x%d: y" % n for n in range(200))),
            431,
            False,
        ),
        Attack(
            "heads", "a header that never ends", b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 400_000, 431
        ),
    ]


def _engine_paths() -> list[Attack]:
    """Paths below /engines/ that an engine could read otherwise than the gateway."""
    engines = {
        "..": b"/engines/m/../../v1/models",
        ".. in the model's place": b"/engines/../metrics",
        ".. in the model's name": b"/engines/a%2f..%2f..%2fmetrics/x",
        "%2e%2e": b"/engines/m/%2e%2e/x",
        ".%2e": b"/engines/m/.%2e/x",
        "%252e%252e, escaped twice": b"/engines/m/%252e%252e/x",
        "%25252e, escaped three times": b"/engines/m/%25252e%25252e/x",
        "%2500, an escaped NUL escaped": b"/engines/m/x%2500",
        "a backslash in the query": b"/engines/m/x?a=\\",
        "..;x, as some servers read it": b"/engines/m/..;x/y",
        ".": b"/engines/m/./x",
        "//": b"/engines/m//evil.test/x",
        "an escaped slash": b"/engines/m/a%2fb",
        "an escaped slash, escaped twice": b"/engines/m/a%252fb",
        "an escaped backslash": b"/engines/m/..%5cx",
        "half an escape": b"/engines/m/x%2",
        "an escaped prefix": b"/%65ngines/m/x",
    }
    return [
        Attack("targets", f"/engines/ with {name}", _get(path), 400, False) for name, path in engines.items()
    ]


def _targets() -> list[Attack]:
    """Paths that could lead somewhere else."""
    refused = {
        "absolute form (SSRF)": b"http://169.254.169.254/latest/meta-data",
        "absolute form of another scheme": b"ftp://evil:99/v1/models",
        "a path without a slash": b"v1/models",
        "CR and LF in a built-in path": b"/v1/models%0d%0ax:%20y",
        "/engines/ with CR and LF": b"/engines/m/x%0d%0ahost:%20evil",
        "/engines/ with NUL": b"/engines/m/x%00",
        "a line feed after a built-in path": b"/metrics%0a",
        "a fragment": b"/v1/models#/../x",
        "a blank": b"/v1/mod els",
        "a backslash first": b"\\v1\\models",
        "bytes beyond ASCII": b"/v1/\xff",
    }
    found = [Attack("targets", name, _get(path), 400) for name, path in refused.items()]
    nothing = {
        "two slashes first": b"//evil.test/v1/models",
        "built-in paths with ..": b"/v1/audio/../models",
    }
    found += _engine_paths()
    found += [Attack("targets", name, _get(path), 404, False) for name, path in nothing.items()]
    return [
        *found,
        Attack("targets", "CONNECT", b"CONNECT evil.test:443 HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        Attack("targets", "OPTIONS *", b"OPTIONS * HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        Attack(
            "targets",
            "TRACE, which would tell headers back",
            b"TRACE /healthz HTTP/1.1\r\n" + _AUTH + b"\r\n",
            405,
            False,
        ),
        Attack(
            "targets",
            "TRACE, for an engine",
            b"TRACE /engines/m/x HTTP/1.1\r\n" + _AUTH + b"\r\n",
            405,
            False,
        ),
        Attack(
            "targets", "a path of 9,000 bytes for an engine", _get(b"/engines/m/" + b"a" * 9000), 414, False
        ),
    ]


def _bodies() -> list[Attack]:
    """Bodies that are more than they seem."""
    encoded = {
        "gzip": b"gzip",
        "br": b"br",
        "zstd": b"zstd",
        "GZIP in capitals": b"GZIP",
        "identity, gzip": b"identity, gzip",
    }
    found = [
        Attack("bodies", f"compressed: {name}", _post(_length(), b"content-encoding: " + coding), 415, False)
        for name, coding in encoded.items()
    ]
    deep = b'{"model":' + b"[" * 100_000
    return [
        *found,
        Attack("bodies", "JSON 100,000 levels deep", _post(_length(deep), body=deep), 400, False),
        Attack("bodies", "1 GB announced", _post(b"content-length: 1000000000", body=b"{"), 413, False),
        Attack(
            "bodies",
            "1 GB announced, waiting for 100 Continue",
            _post(b"content-length: 1000000000", b"expect: 100-continue", body=b""),
            413,
            False,
        ),
    ]


def _keys() -> list[Attack]:
    """What opens nothing."""
    wrong = {
        "no key": b"host: x\r\n",
        "a wrong key": b"host: x\r\nauthorization: Bearer sk-tl-" + b"0" * 32 + b"\r\n",
        "the key as Basic": b"host: x\r\nauthorization: Basic <KEY>\r\n",
        "the key in a cookie": b"host: x\r\ncookie: authorization=<KEY>\r\n",
        "an address of loopback, said by the client": (
            b"host: x\r\nx-forwarded-for: 127.0.0.1\r\nforwarded: for=127.0.0.1\r\n"
        ),
    }
    found = [Attack("keys", name, _get(b"/v1/models", auth=auth), 401, False) for name, auth in wrong.items()]
    return [
        *found,
        Attack(
            "keys",
            "the key in the query",
            _get(b"/v1/models?key=<KEY>&api_key=<KEY>", auth=b"host: x\r\n"),
            401,
            False,
        ),
        Attack("keys", "metrics without a key", _get(b"/metrics", auth=b"host: x\r\n"), 401, False),
        Attack(
            "keys",
            "a page of another origin asks (CORS)",
            b"OPTIONS /v1/models HTTP/1.1\r\nhost: x\r\norigin: https://evil.test\r\n"
            b"access-control-request-method: GET\r\n\r\n",
            405,
            False,
        ),
    ]


def _websockets() -> list[Attack]:
    """At /tunnel, before anybody has proved who he is."""
    head = b"GET %b HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    rest = b"sec-websocket-version: %b\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    good = head % b"/tunnel" + rest % b"13"
    right = b"sec-websocket-protocol: trunkline.1\r\n\r\n"
    return [
        Attack("tunnel", "a plain request", _get(b"/tunnel"), 426, False),
        Attack(
            "tunnel",
            "another path",
            head % b"/v1/models" + rest % b"13" + b"connection: close\r\n" + right,
            401,
        ),
        Attack("tunnel", "no subprotocol", good + b"\r\n", 400),
        Attack("tunnel", "a wrong subprotocol", good + b"sec-websocket-protocol: chat\r\n\r\n", 400),
        Attack("tunnel", "another version", head % b"/tunnel" + rest % b"8" + right, 400),
        Attack("tunnel", "no key", head % b"/tunnel" + b"sec-websocket-version: 13\r\n" + right, 400),
        Attack(
            "tunnel",
            "a message of 64 kB",
            good + right + b"\x82\xff" + (65_536).to_bytes(8, "big") + bytes(4) + bytes(65_536),
            101,
        ),
        Attack("tunnel", "an unmasked message", good + right + b"\x82\x05hello", 101),
        Attack("tunnel", "a text message", good + right + b"\x81\x85" + bytes(4) + b"hello", 101),
        Attack("tunnel", "reserved bits", good + right + b"\xf2\x85" + bytes(4) + b"hello", 101),
        Attack(
            "tunnel",
            "a frame of 2^63 bytes",
            good + right + b"\x82\xff" + b"\x7f" + b"\xff" * 7 + bytes(4),
            101,
        ),
        Attack(
            "tunnel", "a flood of pings", good + right + (b"\x89\xfd" + bytes(4) + bytes(125)) * 1000, 101
        ),
        Attack(
            "tunnel",
            "a message in endless pieces",
            good + right + b"\x02\x80" + bytes(4) + (b"\x00\x80" + bytes(4)) * 20_000,
            101,
        ),
        Attack("tunnel", "a continuation of nothing", good + right + b"\x80\x85" + bytes(4) + b"hello", 101),
    ]


ATTACKS = (*_framing(), *_heads(), *_targets(), *_bodies(), *_keys(), *_websockets())

_HEADINGS = {
    "framing": "where a body ends",
    "heads": "heads",
    "targets": "paths",
    "bodies": "bodies",
    "keys": "keys and pages",
    "tunnel": "`/tunnel`, by strangers",
}
_RESULTS = {
    101: "upgraded, then closed within 5 s and 65 KiB",
    200: "200, and nothing more",
    400: "400",
    404: "404",
    431: "431",
}


def rows() -> list[str]:
    """The table as ``docs/security.md`` has it: attacks of one kind with one result in one row."""
    found: dict[tuple[str, str], list[str]] = {}
    for attack in ATTACKS:
        result = _RESULTS.get(attack.status, str(attack.status))
        result += ", closed" if attack.closes and attack.status >= 400 else ""
        found.setdefault((_HEADINGS[attack.group], result), []).append(attack.name.replace("|", "\\|"))
    return [f"| {group}: {'; '.join(names)} | {result} |" for (group, result), names in found.items()]
