"""The answers of a batch so far, in a file beside the one that they all come to in the end; and what can go
wrong with that one."""

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

import orjson
import typer

from gateway.cli.batch_lines import line_number
from gateway.domain.line_ranges import LineRanges, missing_lines
from shared.process.excerpt import printable


class NotWritten(Exception):
    """The answers cannot be written. The message says why."""


@contextlib.contextmanager
def writing(out: Path) -> Iterator[None]:
    """Raises NotWritten for what goes wrong with the file, and not with the gateway."""
    try:
        yield
    except OSError as error:
        raise NotWritten(f"cannot write {printable(str(out))} ({error.strerror})") from None


def give_up(written: IO[bytes]) -> None:
    """Close a file, if it is not closed. What could not be written is lost."""
    with contextlib.suppress(OSError):
        written.close()


def check_out(out: Path) -> None:
    """Raises typer.BadParameter where the answers could not be written in the end."""
    try:
        with tempfile.TemporaryFile(dir=out.parent):
            pass
        if out.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    except OSError as error:
        said = f"cannot write {printable(str(out))} ({error.strerror})"
        raise typer.BadParameter(said, param_hint="--out") from None


class PartialAnswers:
    """``OUT.partial``: lines of one batch in the order in which they came. It is there once there is one."""

    def __init__(self, out: Path, batch_id: str) -> None:
        """Goes on with what an earlier command has written; what is of another batch, or broken off, goes:
        the gateway has it still. Raises OSError."""
        self.path = out.with_name(f"{out.name}.partial")
        self._begins = f"batch_req_{batch_id.removeprefix('batch_')}_"
        self._have: set[int] = set()
        self._keep_whole()

    def __len__(self) -> int:
        return len(self._have)

    @property
    def missing(self) -> LineRanges:
        """The lines to ask for; there may be some among them that are here."""
        return missing_lines(self._have)

    def add(self, lines: Iterable[bytes]) -> None:
        """Write those that are not here yet. Raises OSError."""
        with self.path.open("ab") as written:
            for line in lines:
                number = self._number(line)
                if number is not None and number not in self._have:
                    written.write(line)
                    written.flush()
                    self._have.add(number)

    def remove(self) -> None:
        """All answers are in their own file. Raises OSError."""
        self.path.unlink(missing_ok=True)

    def _keep_whole(self) -> None:
        try:
            file = self.path.open("r+b")
        except FileNotFoundError:
            return
        with file:
            whole_bytes = 0
            for line in file:
                number = self._number(line)
                if number is None:
                    break
                self._have.add(number)
                whole_bytes += len(line)
            file.truncate(whole_bytes)

    def _number(self, line: bytes) -> int | None:
        """Of a whole line of this batch."""
        if not line.endswith(b"\n"):
            return None
        try:
            found = orjson.loads(line)["id"]
            return line_number(line) if found.startswith(self._begins) else None
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
