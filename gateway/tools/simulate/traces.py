"""Traces read line by line: three formats, recognised by their first line. Memory does not grow with the
file.

- **Azure LLM inference trace** (CSV; Patel et al., "Splitwise", ISCA 2024): ``TIMESTAMP, ContextTokens,
  GeneratedTokens``.
- **Mooncake** (JSON lines; Qin et al., FAST 2025): ``timestamp`` in ms, ``input_length``, ``output_length``,
  ``hash_ids`` of blocks of 512 tokens.
- **Trunkline's own** (JSON lines): ``at_s``, ``input_tokens``, ``output_tokens`` and, where known,
  ``prefix`` (integers that name the prompt's whole blocks, chained: equal as far as prompts are equal),
  ``max_tokens``, ``tier``, ``tenant``, ``session``, ``deadline_s`` (after its arrival), ``kind``,
  ``cached_tokens`` (of the prompt, that any deployment has cached). The first line may be
  ``{"block_tokens": N}``; without it a block has 512 tokens.

Requests are in order of time, and times are taken from the first on. One without input or output counts as
if it had one token.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import orjson
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from gateway.tools.simulate.inputs import MAX_TOKENS, BadTrace, Blocks, Job, Tokens, mistake_in

DEFAULT_BLOCK_TOKENS = 512
MAX_LINE_BYTES = 1 << 20
_AZURE = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]

_Parse = Callable[[bytes], Job]
"""One line to a job; raises _Wrong or pydantic's ValidationError."""


class _Wrong(Exception):
    """What is wrong with a line."""


class _Header(BaseModel):
    block_tokens: int = Field(ge=1, le=MAX_TOKENS, strict=True)


class _MooncakeRequest(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    timestamp: float
    input_length: Tokens
    output_length: Tokens
    hash_ids: Blocks = ()


class TraceFile:
    """A trace on disk. Raises BadTrace when it is no file, is empty, or is of no known format."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.block_tokens = DEFAULT_BLOCK_TOKENS
        if path.is_fifo() or path.is_char_device():
            raise BadTrace(str(path), 0, "it is read more than once, so it must be a file on disk")
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
            except (_Wrong, ValidationError) as error:
                why = mistake_in(error) if isinstance(error, ValidationError) else str(error)
                raise BadTrace(self._path.name, number, why) from None
            latest_s = job.at_s
            begin_s = job.at_s if begin_s is None else begin_s
            yield replace(job, at_s=job.at_s - begin_s)
        if begin_s is None:
            raise BadTrace(self._path.name, 0, "there is no request in it")

    def _of_json(self, first: bytes) -> _Parse:
        try:
            members = orjson.loads(first)
        except orjson.JSONDecodeError:
            members = None
        members = members if isinstance(members, dict) else {}
        if members.keys() == {"block_tokens"}:
            try:
                self.block_tokens = _Header.model_validate_json(first).block_tokens
            except ValidationError as error:
                raise BadTrace(self._path.name, 1, mistake_in(error)) from None
            return TypeAdapter(Job).validate_json
        self._header = False
        if "input_length" in members:
            return _mooncake
        if "input_tokens" in members:
            return TypeAdapter(Job).validate_json
        raise BadTrace(
            self._path.name,
            1,
            f"no trace begins so; known are CSV with the columns {','.join(_AZURE)}, JSON lines with "
            "timestamp, input_length and output_length, and those with at_s, input_tokens and output_tokens",
        )

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
    request = _MooncakeRequest.model_validate_json(line)
    tokens = request.input_length
    return Job(
        request.timestamp / 1000,
        tokens,
        request.output_length,
        request.hash_ids[: tokens // DEFAULT_BLOCK_TOKENS],
    )
