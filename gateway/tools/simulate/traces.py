"""Traces read line by line: three formats, told apart by how they begin. Memory does not grow with the file.

- **Azure LLM inference trace** (CSV; Patel et al., "Splitwise", ISCA 2024): ``TIMESTAMP, ContextTokens,
  GeneratedTokens``.
- **Mooncake** (JSON lines; Qin et al., FAST 2025): ``timestamp`` in ms, ``input_length``, ``output_length``,
  ``hash_ids`` of blocks of 512 tokens.
- **Trunkline's own** (JSON lines): ``at_s``, ``input_tokens``, ``output_tokens`` and, where known,
  ``prefix`` (integers that name the prompt's whole blocks, chained: equal as far as prompts are equal),
  ``max_tokens``, ``tier``, ``tenant``, ``session``, ``deadline_s`` (after its arrival), ``kind``. The first
  line may be ``{"block_tokens": N}``; without it a block has 512 tokens.

Requests are in order of time, and times are taken from the first on. One without input or output counts as
if it had one token.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson

from gateway.domain.request import Tier
from gateway.tools.simulate.inputs import BadTrace, Job

DEFAULT_BLOCK_TOKENS = 512
MAX_LINE_BYTES = 1 << 20
MAX_TOKENS = 10_000_000
MAX_BLOCKS = 100_000
_AZURE = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]
_OWN = frozenset(
    ("at_s", "input_tokens", "output_tokens", "prefix", "max_tokens", "tier", "tenant", "session")
) | {"deadline_s", "kind"}

_Parse = Callable[[bytes], Job]
"""One line to a job; raises _Wrong."""


class _Wrong(Exception):
    """What is wrong with a line."""


class TraceFile:
    """A trace on disk. Raises BadTrace when it is no file, is empty, or is of no known format."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.block_tokens = DEFAULT_BLOCK_TOKENS
        _, first = next(self._lines(), (0, b""))
        if not first:
            raise BadTrace(path.name, 0, "there is nothing in it")
        self._header = True
        if first.split(b",")[0] == b"TIMESTAMP":
            if first.decode(errors="replace").split(",") != _AZURE:
                raise BadTrace(path.name, 1, f"the columns must be {','.join(_AZURE)}")
            self._parse: _Parse = _azure
        else:
            self._parse = self._of_json(first)

    def jobs(self) -> Iterator[Job]:
        """See :class:`~gateway.tools.simulate.inputs.Traffic`. Raises BadTrace."""
        latest_s, begin_s = -math.inf, None
        for number, line in itertools.islice(self._lines(), int(self._header), None):
            try:
                job = self._parse(line)
                if job.at_s < latest_s:
                    raise _Wrong(f"it came {latest_s - job.at_s:g} s before the request above it")
                _check(job, self.block_tokens)
            except _Wrong as error:
                raise BadTrace(self._path.name, number, str(error)) from None
            latest_s = job.at_s
            begin_s = job.at_s if begin_s is None else begin_s
            yield replace(job, at_s=job.at_s - begin_s)

    def _of_json(self, first: bytes) -> _Parse:
        try:
            members = _object(first)
        except _Wrong:
            members = {}
        if members.keys() == {"block_tokens"}:
            self.block_tokens = self._block_tokens(members["block_tokens"])
            return _own
        self._header = False
        if "input_length" in members:
            return _mooncake
        if "input_tokens" in members:
            return _own
        raise BadTrace(
            self._path.name,
            1,
            f"no trace begins so; known are CSV with the columns {','.join(_AZURE)}, JSON lines with "
            "timestamp, input_length and output_length, and those with at_s, input_tokens and output_tokens",
        )

    def _block_tokens(self, value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_TOKENS:
            return value
        raise BadTrace(self._path.name, 1, f"block_tokens must be a whole number over 0, not {value!r}")

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        """Lines that are not blank, with their numbers."""
        try:
            with self._path.open("rb") as file:
                for number in itertools.count(1):
                    line = file.readline(MAX_LINE_BYTES + 1)
                    if len(line) > MAX_LINE_BYTES:
                        raise BadTrace(self._path.name, number, f"longer than {MAX_LINE_BYTES:,} bytes")
                    if not line:
                        return
                    if stripped := line.strip().removeprefix(b"\xef\xbb\xbf"):
                        yield number, stripped
        except OSError as error:
            raise BadTrace(str(self._path), 0, error.strerror or "cannot be read") from None


def _check(job: Job, block_tokens: int) -> None:
    if not math.isfinite(job.at_s):
        raise _Wrong("its time is no number")
    if max(job.input_tokens, job.output_tokens) > MAX_TOKENS:
        raise _Wrong(f"more than {MAX_TOKENS:,} tokens")
    if len(job.prefix) * block_tokens > job.input_tokens:
        raise _Wrong(
            f"{len(job.prefix)} blocks of {block_tokens} tokens are more than its {job.input_tokens} of input"
        )


def _azure(line: bytes) -> Job:
    cells = line.decode(errors="replace").split(",")
    if len(cells) != len(_AZURE):
        raise _Wrong(f"{len(_AZURE)} columns are needed, not {len(cells)}")
    try:
        at = datetime.fromisoformat(cells[0])
    except ValueError:
        raise _Wrong(f"{cells[0]!r} is no time such as 2023-11-16 18:17:03.97") from None
    at_s = (at.replace(tzinfo=None) - _EPOCH).total_seconds() - (
        offset.total_seconds() if (offset := at.utcoffset()) else 0
    )
    return Job(at_s, _count(_AZURE[1], cells[1]), _count(_AZURE[2], cells[2]))


_EPOCH = datetime(2000, 1, 1)  # noqa: DTZ001 the trace's times have no zone


def _count(name: str, cell: str) -> int:
    if not (cell.isascii() and cell.isdigit()):
        raise _Wrong(f"{name} must be a whole number, not {cell!r}")
    return max(1, int(cell))


def _mooncake(line: bytes) -> Job:
    members = _object(line)
    tokens = _whole(members, "input_length")
    blocks = _blocks(members.get("hash_ids", []), "hash_ids")
    return Job(
        _number(members, "timestamp") / 1000,
        tokens,
        _whole(members, "output_length"),
        blocks[: tokens // DEFAULT_BLOCK_TOKENS],
    )


def _own(line: bytes) -> Job:
    members = _object(line)
    if unknown := members.keys() - _OWN:
        raise _Wrong(f"no member is called {min(unknown)!r}; there are: {', '.join(sorted(_OWN))}")
    try:
        tier = Tier(members.get("tier", Tier.STANDARD))
    except ValueError:
        raise _Wrong(f"tier must be one of {', '.join(Tier)}, not {members['tier']!r}") from None
    return Job(
        _number(members, "at_s"),
        _whole(members, "input_tokens"),
        _whole(members, "output_tokens"),
        _blocks(members.get("prefix", []), "prefix"),
        _whole(members, "max_tokens") if members.get("max_tokens") is not None else None,
        tier,
        _text(members, "tenant"),
        _text(members, "session") or None,
        _number(members, "deadline_s") if members.get("deadline_s") is not None else None,
        _text(members, "kind"),
    )


def _object(line: bytes) -> dict[str, Any]:
    try:
        members = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise _Wrong(f"this is no JSON: {error}") from None
    if not isinstance(members, dict):
        raise _Wrong("this is no JSON object")
    return members


def _number(members: dict[str, Any], name: str) -> float:
    value = members.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _Wrong(f"{name} must be a number" + ("" if name in members else ", and is missing"))
    return float(value)


def _whole(members: dict[str, Any], name: str) -> int:
    value = members.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise _Wrong(f"{name} must be a whole number" + ("" if name in members else ", and is missing"))
    return max(1, value)


def _blocks(value: object, name: str) -> tuple[int, ...]:
    if isinstance(value, list) and len(value) <= MAX_BLOCKS and all(type(each) is int for each in value):
        return tuple(value)
    raise _Wrong(f"{name} must be a list of at most {MAX_BLOCKS:,} whole numbers")


def _text(members: dict[str, Any], name: str) -> str:
    value = members.get(name) or ""
    if not isinstance(value, str) or len(value) > 256:
        raise _Wrong(f"{name} must be a text of at most 256 characters")
    return value
