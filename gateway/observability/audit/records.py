"""Lines of the audit log, what they say of requests, and its head. Pure.

A line is a JSON object that begins with ``seq`` (1, 2, 3 …), ``prev`` (the SHA-256 of the line before, in
hex, without its newline; of the first line 64 zeros), ``at`` (UTC) and ``kind``. The head says, under the
gateway's signature, what the last line is and where it ends.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import orjson
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from msgspec import Struct, json, to_builtins

from gateway.domain.quotas import FREE, Price
from gateway.domain.request import Tier
from shared.process.utc_text import to_milliseconds
from shared.protocol.messages import Usage

START = "0" * 64
"""``prev`` of the first line."""

LINE_BYTES = 64 * 1024
"""Longest line."""

REQUEST_BYTES = LINE_BYTES - 256
"""Longest line of a request, without its number and the hash of the one before."""

SMALL_BYTES = 512
SMALL_FACTS = 64
"""What a line keeps of facts that are too long for one, or no JSON."""

PIECE_RECORDS = 128
"""So many are a piece of work, after which a thread beside the event loop rests."""

RESERVED = ("seq", "prev", "at", "kind")
_SIGNED = b"trunkline audit head 1\n"
_HEX_64 = re.compile(r"[0-9a-f]{64}")


class Signer(Protocol):
    """The gateway's key; :class:`shared.identity.GatewayIdentity`."""

    @property
    def public_key(self) -> bytes: ...
    def sign(self, message: bytes) -> bytes: ...


class BadChainHead(ValueError):
    """The head is missing, changed, or signed by another key."""


class AuditEntry(Struct, frozen=True, gc=False):
    """One line, before it is numbered and chained."""

    at_s: float
    """Seconds since 1970."""
    kind: str
    facts: Mapping[str, Any]
    """Without the names of ``RESERVED``."""


class _RequestLine(Struct, frozen=True, omit_defaults=True, gc=False):
    """The line of a request but for its number and its hash. What is None is left out."""

    at: str
    kind: str
    id: str
    who: str
    tenant: str
    status: int
    route: str
    total_ms: float
    error: str | None = None
    model: str | None = None
    alias: str | None = None
    target: str | None = None
    version: str | None = None
    tier: Tier | None = None
    queue_ms: float | None = None
    first_byte_ms: float | None = None
    ran: Sequence[str] | None = None
    why_not: list[str] | None = None
    ran_by: str | None = None
    device: str | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    tokens_cached: int | None = None
    gpu_s: float | None = None
    cost: float | None = None


_encode = json.Encoder().encode


class RequestFacts(Struct, frozen=True, gc=False):
    """Who asked, where it ran and why, and what it used, put together at a request's end. No content."""

    at_s: float
    """Seconds since 1970."""
    id: str
    status: int
    error: str | None
    """A code."""
    key_id: str
    tenant: str
    route: str
    model: str | None
    alias: str | None
    target: str
    version: str | None
    tier: Tier | None
    deployments: Sequence[str]
    """It was given to these, in order."""
    troubles: Sequence[tuple[str, str]] | None
    """Deployments that did not bring it to an end, in order, and why."""
    queue_s: float | None
    first_byte_s: float | None
    total_s: float
    usage: Usage | None
    gpu_s: float
    """Seconds of devices, as far as they are known at its end."""
    price: Price | None
    """The price of its model."""
    ran_by: str = ""
    """Where its agent is a gateway: that gateway's agent, and what it ran on."""
    device: str = ""

    def line(self) -> "AuditEntry | bytes":
        """What :func:`lines_of` is given: usually the line but for its number and its hash, made while all
        this is in the processor's caches; later it is not."""
        try:
            line = _encode(self.whole())
        except UnicodeEncodeError:  # text that is no Unicode
            line = b""
        if 0 < len(line) <= REQUEST_BYTES:
            return line[1:]
        return AuditEntry(self.at_s, "request", facts_of(self))

    def whole(self) -> _RequestLine:
        """The line but for its number and its hash. Times become milliseconds."""
        usage, gpu_s, price, ran_by = self.usage, self.gpu_s, self.price, self.ran_by
        queue_s, first_s = self.queue_s, self.first_byte_s
        deployments, alias = self.deployments, self.alias
        cost = None if price is None or price is FREE else cost_of(price, gpu_s, usage)
        return _RequestLine(
            to_milliseconds(self.at_s),
            "request",
            self.id,
            "key:" + self.key_id,
            self.tenant,
            self.status,
            self.route,
            # here and below: a round to decimals would be made by way of text
            round(self.total_s * 100_000) / 100,
            self.error,
            self.model,
            alias,
            None if alias is None else self.target,
            self.version or None,
            self.tier,
            None if queue_s is None else round(queue_s * 100_000) / 100,
            None if first_s is None else round(first_s * 100_000) / 100,
            deployments or None,
            why_not(deployments, self.troubles) if deployments and self.troubles else None,
            ran_by or None,
            self.device if ran_by else None,
            None if usage is None else usage.prompt_tokens,
            None if usage is None else usage.completion_tokens,
            (usage.cached_tokens or None) if usage is not None else None,
            round(gpu_s * 1_000_000) / 1_000_000 if gpu_s else None,
            round(cost, 9) if cost else None,
        )


@dataclass(frozen=True, slots=True)
class ChainHead:
    """The last line."""

    seq: int = 0
    hash: str = START
    segment: str = ""
    """The file it is in; empty before the first line."""
    end_bytes: int = 0
    """Where it ends there, its newline included."""
    taken: tuple[str, ...] = ()
    """Acts that are lines and may still wait in the database."""


def timestamp(wall_s: float) -> str:
    """``2026-11-21T20:30:00.123Z``: sorts as time does."""
    return to_milliseconds(wall_s)


def hash_of(line: bytes) -> str:
    """The hash of a line without its newline."""
    return hashlib.sha256(line).hexdigest()


def lines_of(
    entries: Iterable[AuditEntry | bytes], seq: int, prev: str, rest: Callable[[], None] = lambda: None
) -> tuple[bytes, int, str]:
    """``entries`` as lines after line ``seq`` with hash ``prev``; the number and hash of the last of them.
    Bytes are what :meth:`RequestFacts.line` made. ``rest`` is called after each ``PIECE_RECORDS``."""
    lines: list[bytes] = []
    for entry in entries:
        if lines and not len(lines) % PIECE_RECORDS:
            rest()
        seq += 1
        if isinstance(entry, bytes):
            line = b'{"seq":%d,"prev":"%b",%b' % (seq, prev.encode(), entry)
        else:
            line = _line(entry, seq, prev)
        lines.append(line + b"\n")  # a copy: what orjson gives holds a block of 8 KiB or more
        prev = hash_of(line)
    return b"".join(lines), seq, prev


def _line(entry: AuditEntry, seq: int, prev: str) -> bytes:
    """An entry always becomes a line: a shortened one where it is too long or no JSON."""
    kind, facts, at = entry.kind, entry.facts, timestamp(entry.at_s)
    try:
        line = orjson.dumps({"seq": seq, "prev": prev, "at": at, "kind": kind, **facts}, default=_type_name)
    except TypeError:  # a number of more than 64 bits, text that is no Unicode
        line = b""
    if 0 < len(line) <= LINE_BYTES:
        return line
    small = {name: value for name, value in facts.items() if _is_small(value)}
    record = {"seq": seq, "prev": prev, "at": at, "kind": kind}
    return orjson.dumps({**record, **dict(list(small.items())[:SMALL_FACTS]), "shortened": True})


def _is_small(value: object) -> bool:
    """Whether a shortened line has room for it."""
    try:
        return len(orjson.dumps(value)) <= SMALL_BYTES
    except TypeError:
        return False


def _type_name(value: object) -> str:
    return f"<{type(value).__name__}>"


def facts_of(request: RequestFacts) -> dict[str, Any]:
    """As the line has them; times in milliseconds. What is not known is left out."""
    found: dict[str, Any] = to_builtins(request.whole())
    del found["at"], found["kind"]
    return found


def cost_of(price: Price, gpu_s: float, usage: Usage | None) -> float:
    """In money."""
    cost = gpu_s * price.gpu_second
    if usage is not None:
        cost += price.of_tokens(usage.prompt_tokens, usage.completion_tokens)
    return cost


def why_not(deployments: Sequence[str], troubles: Sequence[tuple[str, str]]) -> list[str]:
    """Why each deployment did not bring it to its end; empty: it did, or the request ended with it."""
    left, found = list(troubles), []
    for deployment in deployments:
        trouble = next((each for each in left if each[0] == deployment), None)
        if trouble is not None:
            left.remove(trouble)
        found.append(trouble[1] if trouble is not None else "")
    return found


def encode_head(head: ChainHead, signer: Signer) -> bytes:
    """The head's file, signed."""
    return _file_of(head, signer.public_key, signer.sign(_SIGNED + orjson.dumps(head)))


def _file_of(head: ChainHead, key: bytes, signature: bytes) -> bytes:
    return orjson.dumps({"head": head, "key": key.hex(), "signature": signature.hex()}) + b"\n"


def decode_head(data: bytes, keys: Iterable[bytes] | None = None) -> ChainHead:
    """The head in its file, signed by one of ``keys`` (public, raw; None: by whichever it names).

    Raises BadChainHead, also for anything but the very bytes that were written.
    """
    try:
        value = orjson.loads(data)
        facts, key, signature = value["head"], bytes.fromhex(value["key"]), bytes.fromhex(value["signature"])
        head = ChainHead(**{**facts, "taken": tuple(facts["taken"])})
        written = _file_of(head, key, signature)
    except (ValueError, TypeError, KeyError) as error:
        raise BadChainHead("it cannot be read") from error
    if written != data or not _has_types(head):
        raise BadChainHead("it was changed")
    if keys is not None and key not in set(keys):
        raise BadChainHead(f"another key signed it ({key.hex()[:16]}…)")
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, _SIGNED + orjson.dumps(head))
    except (InvalidSignature, ValueError) as error:
        raise BadChainHead("its signature is wrong") from error
    return head


def _has_types(head: ChainHead) -> bool:
    numbers = isinstance(head.seq, int) and isinstance(head.end_bytes, int)
    return numbers and isinstance(head.segment, str) and _HEX_64.fullmatch(str(head.hash)) is not None
