"""Requests at the admin API, drawn from a seed: bodies, paths and queries, valid and spoilt. Pure."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any
from urllib.parse import quote, urlencode

from gateway.api.admin.resources.resource import Operation
from gateway.api.admin.routes import BODY_BYTES
from gateway.domain.scopes import AdminRole
from tests.gateway.api.admin.house import BODIES

_NESTED = 900
_MIB = 1024 * 1024
_NAMES: Mapping[str, tuple[str, ...]] = {
    "key": ("ci", "k1", "k2"),
    "agent": ("gpu-1", "gpu-2", "gpu-3"),
    "alias": ("org/llama", "m"),
    "tenant": ("acme", "default"),
    "model": ("org/llama", "m", "*", "tiny", "huge"),
    "token": ("tlj_x",),
    "chain": ("gateway", "gateway-2"),
    "delivery": ("evt_1", "evt_2"),
}
"""Of records, by what stands in the path."""
_PATH_PIECES = (
    *("%00", "%ff", "%ed%a0%80", "%2f", "..", "%2e%2e", "a" * 5000, "%F0%9F%A6%99", "%20", "rollback", "'"),
    *("tlj_x", "%0d%0a", "key_00", "%25", ";", "{key}", "drain", "--", "%c3%a9"),
)
_QUERIES = (b"", b"", b"limit=-1", b"models=%ff&x", b"from=1e999&to=NaN", b"&" * 2000, b"a[]=1&a[]=2", b"%00")
_ASKED: Mapping[str, tuple[str, ...]] = {
    "by": ("key", "tenant", "model", "day", "deployment"),
    "since": ("2026-11-01", "2026-11-21T00:00:00Z", "", "2026-99-99", "0000-00-00", "２０２６-１１-０１"),
    "after": (
        '["m1"]',
        '["a","acme","k1"]',
        "2026-11-21.0001.jsonl@7",
        "../..@0",
        '["\\u0000"]',
        '["\\ud800"]',
    ),
    "limit": ("1", "2", "1000", "1001", "0", "1e3", "1_0", "0x10", "٣", "9" * 400),
    "outcome": ("failed", "waiting", "Failed", "", "\ud800"),
    "object": ("job_1", "", "x" * 201, "\x00"),
    "tenant": ("acme", "\ud800", "\x00", "x" * 201),
    "kind": ("key.", "key.create,token.", ",", "." * 2000, "x" * 3000),
}
"""What may stand in a query."""
_FIELDS = (
    *(b"application/json", b"application/json", b"application/json; charset=utf-16", b"text/plain", b""),
    *(b"multipart/form-data; boundary=x", b"application/problem+json", b"\xff/json", b"json"),
)
_TEXTS = (
    *("", "m", "*", "a/b", " x", "x" * 65, "x" * 3000, "\0", "\n", "é", "🦙", "\ud800", "\udc00\ud800", "％"),
    *(
        "m@v=2",
        "m@=x",
        "@@",
        "m=1e999",
        "m=-1",
        "=",
        "llama@v1=0.5",
        "admin",
        "viewer",
        "batch",
        "chat",
        "'\"",
    ),
    *("NaN", "true", "null", "%s%n", "{0}", "../../etc", "default", "gpu-3"),
)
_NUMBERS = (
    *(0, -1, 1, 5, 2**31, 2**53, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**400, -(2**63), -(2**63) - 1),
    *(0.5, -0.0, 1e-320, 1e15, 1e308, float("inf"), float("-inf"), float("nan"), 60.0, 86400.0),
)


def _targets(random: Random) -> list[str]:
    chosen = [
        f"m{random.randrange(4)}@v{place}={random.randint(1, 9)}" for place in range(random.randint(1, 4))
    ]
    return list(dict.fromkeys(chosen))


_VALID: Mapping[str, Callable[[Random], dict[str, Any]]] = {
    "create_key": lambda random: {
        "name": random.choice(("ci", "k1", "k2", f"k{random.getrandbits(32)}")),
        **random.choice(
            (
                {},
                {"models": ["llama-*"], "tiers": ["batch"], "role": "viewer", "life_s": 60, "rpm": 5},
                {"tenant": "acme", "routes": ["chat"], "where": {"region": ["eu"]}, "tpm": 10**12},
            )
        ),
    },
    "set_key": lambda random: random.choice(
        (
            {"rpm": 5},
            {"tpm": None},
            {"routes": ["chat"], "role": None},
            {"concurrency": 1, "role": "operator"},
        )
    ),
    "rotate_key": lambda random: random.choice(({}, {"overlap_s": 0.0}, {"overlap_s": 60})),
    "create_token": lambda random: random.choice(
        ({}, {"uses": 3, "life_s": 60}, {"models": ["a*"], "labels": {"region": "eu"}})
    ),
    "set_agent": lambda random: random.choice(
        ({"models": ["m"]}, {"labels": {"region": "us"}}, {"name": f"gpu-{random.randint(1, 9)}"})
    ),
    "revoke_agent": lambda random: random.choice(({}, {"reason": "it is sold"}, {"reason": "x", "extra": 1})),
    "set_alias": lambda random: {"targets": _targets(random), "sticky": random.choice((True, False))},
    "change_alias": lambda random: random.choice(
        (
            {"mirror": {"target": "m", "share": 0.5}},
            {"mirror": None},
            {"fallback": ["m0", "m1"]},
            {"fallback": None},
        )
    ),
    "rollback_alias": lambda random: random.choice(({}, {"to": random.randint(1, 9)})),
    "set_tenant": lambda random: random.choice(
        ({"tpm": 100}, {"money_per_day": 1.5, "weight": 2.0}, {"queue_share": 0.5}, {"rpm": None})
    ),
    "set_price": lambda random: {"input": 1.5, "output": random.random()},
    "create_webhook_secret": lambda random: {"tenant": random.choice(("acme", "default", "*", "a/b"))},
    "rotate_webhook_secret": lambda random: random.choice(({}, {"overlap_s": 0.0}, {"overlap_s": 1e9})),
}
assert set(_VALID) == set(BODIES)
_VALID_OF_FLEET: Mapping[str, Callable[[Random], dict[str, Any]]] = {
    "load_model": lambda random: random.choice(
        ({}, {"agent": "gpu-2"}, {"agent": None, "version": "v2"}, {"agent": "gpu-3", "version": None})
    ),
    "evict_model": lambda random: random.choice(({}, {"agent": "gpu-2"}, {"agent": "gpu-3"})),
}
"""Bodies of operations that are not in the table."""
_MEMBERS = {name: tuple(model.model_fields) for name, model in BODIES.items()} | {
    "load_model": ("agent", "version"),
    "evict_model": ("agent",),
}
_FLEET = (
    ("drain", "POST", "/admin/agents/{agent}/drain"),
    ("undrain", "DELETE", "/admin/agents/{agent}/drain"),
    ("queue", "GET", "/admin/queue"),
    *(("load_model", "POST", "/admin/models/{model:path}/load"),) * 3,
    *(("evict_model", "POST", "/admin/models/{model:path}/evict"),) * 3,
)


def _value(random: Random, depth: int = 0) -> Any:
    kind = random.randrange(8 if depth < 3 else 5)
    if kind < 2:
        return random.choice(_TEXTS)
    if kind < 4:
        return random.choice(_NUMBERS)
    if kind == 4:
        return random.choice((None, True, False))
    if kind == 5:
        return [
            _value(random, depth + 1)
            for _ in range(random.choice((0, 1, 3) if depth else (0, 1, 17, 65, 300)))
        ]
    if kind == 6:
        count = random.choice((0, 1, 3) if depth else (0, 1, 33, 65))
        return {f"{random.choice(_TEXTS)}{place}": _value(random, depth + 1) for place in range(count)}
    nested: Any = random.choice(_TEXTS)
    for _ in range(_NESTED):
        nested = [nested]
    return nested


def _spoilt(random: Random, body: dict[str, Any], members: list[str]) -> dict[str, Any]:
    """With one member, or a few, that are something else, missing or too many."""
    for _ in range(random.choice((1, 1, 2, 5))):
        match random.randrange(4):
            case 0 if body:
                del body[random.choice(list(body))]
            case 1:
                body[random.choice(_TEXTS)] = _value(random)
            case 2 if body:
                name = random.choice(list(body))
                body[name] = _inside(random, body[name])
            case _:
                body[random.choice(members)] = _value(random)
    return body


def _inside(random: Random, value: Any) -> Any:
    """Something of a value is another."""
    if isinstance(value, list) and value:
        place = random.randrange(len(value))
        return [*value[:place], _value(random, 2), *value[place + 1 :]]
    if isinstance(value, dict) and value:
        return value | {random.choice([*value, "x"]): _value(random, 2)}
    return _value(random)


def _raw(random: Random, operation: Operation) -> bytes:
    """A body: mostly JSON for the operation, mostly spoilt."""
    valid = {**_VALID, **_VALID_OF_FLEET}
    name = operation.name if operation.name in valid else random.choice(list(valid))
    body, chance = dict(valid[name](random)), random.random()
    if chance > (0.6 if name in _VALID_OF_FLEET else 0.3):
        body = _spoilt(random, body, list(_MEMBERS[name]))
    text = json.dumps(body, ensure_ascii=random.random() < 0.5).encode("utf-8", "surrogatepass")
    if chance > 0.9:
        text = _broken(random, text)
    return text


def _broken(random: Random, text: bytes) -> bytes:
    """Not that JSON any more."""
    place = random.randrange(len(text))
    member = b'"%b":%b' % (
        random.choice((b"name", b"rpm", b"x", b"targets", b"role")),
        random.choice((b"1", b'"y"')),
    )
    return random.choice(
        (
            text[:place],
            text[:place] + random.randbytes(3) + text[place:],
            b"{" + member + b"," + text[1:],  # twice, if it is there
            b"{" + b",".join(b'"%d":1' % number for number in range(6000)) + b"}",
            b"{" + b",".join([member] * 4000) + b"}",
            b'{"models":[' + b"1," * 30_000 + b"1]}",
            b'{"labels":{' + b",".join(b'"%d":1' % number for number in range(6000)) + b"}}",
            b'{"targets":[' + b"[" * _NESTED + b"]" * _NESTED + b"]}",
            b"[" * BODY_BYTES,
            b'{"%b":"' % random.choice((b"name", b"agent", b"version"))
            + b"x" * random.choice((9000, BODY_BYTES - 20, BODY_BYTES, _MIB))
            + b'"}',
            b"1" * random.choice((30, BODY_BYTES)),
            b'{"rpm":' + b"9" * (BODY_BYTES - 9) + b"}",
            b"\xef\xbb\xbf" + text,
            text.decode("utf-8", "replace").encode("utf-16"),
            b"null",
            b"",
        )
    )


def _path(random: Random, operation: Operation, tokens: Sequence[str]) -> str:
    path = operation.path
    while "{" in path:
        before, _, rest = path.partition("{")
        what, _, rest = rest.partition("}")
        names = _NAMES[what.removesuffix(":path")]
        named = random.choice(tokens if what == "token" and tokens else names)
        if random.random() < 0.15:
            named = random.choice(("nobody", "x" * 64, *sum(_NAMES.values(), ())))
        named = quote(named, safe="/" if what.endswith(":path") else "")
        if random.random() < 0.1:
            named = "".join(random.choices(_PATH_PIECES, k=random.randint(1, 2)))
        path = before + named.replace("{", "%7b") + rest
    return path


def _query(random: Random, operation: Operation) -> bytes:
    """For an operation that reads it."""
    if random.random() < 0.1:
        return random.choice(_QUERIES)
    pairs = [(name, random.choice(_ASKED[name])) for name in operation.query if random.random() < 0.4]
    for _ in range(random.choice((0, 0, 1, 1, 2, 20))):
        name = random.choice((*operation.query, *operation.query, random.choice(_TEXTS)))
        pairs.append((name, random.choice((*_ASKED.get(name, ()), *_TEXTS, *map(str, _NUMBERS)))))
    random.shuffle(pairs)
    text = urlencode(pairs, errors="surrogatepass").encode()
    place = random.randrange(len(text) + 1)
    spoilt = random.choice((b"", b"", b"", b"", b"%", b"&&", b";", b"%ff", b"=", b"+", b"\xe9", b"#"))
    return text[:place] + spoilt + text[place:]


def draw_of_fleet(random: Random) -> Operation:
    """An operation of the connected fleet, which is not in the table."""
    name, method, path = random.choice(_FLEET)
    return Operation(name=name, method=method, path=path, role=AdminRole.OPERATOR, run=_not_run)


def _not_run(store: object, asked: object) -> dict[str, Any]:
    raise NotImplementedError("operations of the fleet are done by its pages")


@dataclass(frozen=True, slots=True)
class Asked:
    """One request."""

    operation: Operation
    method: str
    path: str
    query: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    raw: bytes

    def __str__(self) -> str:
        return f"{self.operation.name} with {self.raw[:200]!r} ({len(self.raw)} bytes)"


def draw(random: Random, operation: Operation, key: str, tokens: Sequence[str]) -> Asked:
    """A request for ``operation`` by who has ``key``; ``tokens`` are ids of join tokens."""
    method = operation.method if random.random() < 0.97 else random.choice(("PUT", "HEAD", "DELETE", "QUERY"))
    kind = b"application/json" if random.random() < 0.7 else random.choice(_FIELDS)
    headers = [(b"content-type", kind), (b"authorization", b"Bearer " + key.encode())]
    if random.random() < 0.03:
        headers.append((b"content-encoding", random.choice((b"gzip", b"br", b"identity"))))
    path, raw = _path(random, operation, tokens), _raw(random, operation)
    query = _query(random, operation) if operation.query else random.choice(_QUERIES)
    return Asked(operation, method, path, query, tuple(headers), raw)
