"""The dashboard's files: HTML, styles and ES modules from the package's own data, as they are written there.

Every file is open to everybody, since none says anything of this gateway: the page asks the admin API for all
it shows, with the key that its user gives it.
"""

import asyncio
import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gateway.api.errors import HeaderList
from gateway.api.exchange.exchange import HttpExchange
from gateway.api.openai.handlers import ReadPage, not_found

PREFIX = "/ui/"
STATIC = Path(__file__).parent / "static"

_TYPES = {
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".svg": b"image/svg+xml",
}

_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    b"require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Scripts and styles come from here alone and none is inline. No script can make markup of a text: the policy
``trusted-types 'none'`` refuses ``innerHTML`` and its like, whatever is assigned."""

HEADERS: HeaderList = [
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
    (b"cache-control", b"no-cache"),
    (b"vary", b"accept-encoding"),
]
"""Of every file. Browsers keep them and ask whether they have changed, so that a page never mixes modules of
two versions for longer than one visit."""


@dataclass(frozen=True, slots=True)
class UiFile:
    """One file, ready to be sent."""

    content_type: bytes
    body: bytes
    compressed: bytes
    """By gzip."""
    etag: bytes
    """Weak, since it names both forms."""

    @classmethod
    def read(cls, path: Path) -> "UiFile":
        """Waits for the disk."""
        body = path.read_bytes()
        digest = hashlib.sha256(body).hexdigest()[:32]
        etag = f'W/"{digest}"'.encode("ascii")
        return cls(_TYPES[path.suffix], body, gzip.compress(body, 9, mtime=0), etag)


def read_files(directory: Path = STATIC) -> dict[str, UiFile]:
    """Every file below ``directory`` of a type that is served, by its name below :data:`PREFIX`."""
    return {
        PurePosixPath(path.relative_to(directory)).as_posix(): UiFile.read(path)
        for path in sorted(directory.rglob("*"))
        if path.suffix in _TYPES and path.is_file()
    }


class UiFiles:
    """Answers for every path below :data:`PREFIX`. A name is looked up among those that are there and never
    becomes a path of the file system, so no name leads out of the directory."""

    def __init__(self, directory: Path = STATIC) -> None:
        self._directory = directory
        self._files: dict[str, UiFile] | None = None

    async def __call__(self, exchange: HttpExchange, names: Mapping[str, str]) -> None:
        """The files are read at the first request, in a thread: no start and no event loop waits for it."""
        if self._files is None:
            self._files = await asyncio.to_thread(read_files, self._directory)
        found = self._files.get(names["file"] or "index.html")
        if found is None:
            raise not_found(exchange)
        fields, tag = exchange.fields, [(b"etag", found.etag), *HEADERS]
        if _names_tag(fields.get(b"if-none-match", b""), found.etag):
            await exchange.reply.start(304, tag)
            await exchange.reply.end()
        elif _takes_gzip(fields.get(b"accept-encoding", b"")):
            headers = [*tag, (b"content-encoding", b"gzip")]
            await exchange.reply.whole(200, found.content_type, found.compressed, headers)
        else:
            await exchange.reply.whole(200, found.content_type, found.body, tag)


async def _to_directory(exchange: HttpExchange, names: Mapping[str, str]) -> None:
    """``/ui``: the page's own references are relative, so it is at ``/ui/`` only. The place is relative, too:
    a proxy in front may have this gateway below a path of its own."""
    await exchange.reply.start(308, [(b"location", b"ui/"), (b"content-length", b"0")])
    await exchange.reply.end()


def ui_pages(directory: Path = STATIC) -> dict[str, ReadPage]:
    """The pages by path."""
    return {"/ui": ReadPage("ui", _to_directory), PREFIX + "{file:path}": ReadPage("ui", UiFiles(directory))}


def _names_tag(field: bytes, etag: bytes) -> bool:
    """Whether ``If-None-Match`` names ``etag``, by RFC 9110's weak comparison."""
    wanted = etag.removeprefix(b"W/")
    named = (each.strip().removeprefix(b"W/") for each in field[:4096].split(b","))
    return any(each in (wanted, b"*") for each in named)


def _takes_gzip(field: bytes) -> bool:
    """Whether ``Accept-Encoding`` names gzip and does not rule it out."""
    for each in field[:1024].lower().split(b","):
        name, _, weight = each.partition(b";")
        if name.strip() in (b"gzip", b"x-gzip"):
            return weight.replace(b" ", b"") not in (b"q=0", b"q=0.0", b"q=0.00", b"q=0.000")
    return False
