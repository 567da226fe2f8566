"""Where the store is when it is no file in the state directory: a server, how it is reached, and for how long
a gateway goes on without it."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, unquote

STALE_S = 120.0
"""How long keys and agents are served from memory while the server is away, by default."""

_HOST = r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._%-]*)(?::[0-9]{0,5})?"
_URL = re.compile(
    rf"(?:postgresql|postgres)://(?:[^@/?#]*@)?(?P<hosts>{_HOST}(?:,{_HOST})*)"
    r"(?:/(?P<database>[^@/?#]*))?(?:\?(?P<query>[^#]*))?"
)
_WRITE = (
    "write postgresql://USER@HOST:PORT/DATABASE, and in a name or password %40 for @, %2F for /, %3A for :, "
    "%23 for #, %25 for %, %3F for ?"
)


class BadStoreAddress(ValueError):
    """What was given is no address of a store. The message does not show it: it may hold a password."""


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """A PostgreSQL server and what is needed to use it as the store."""

    url: str = field(repr=False)
    """``postgresql://[USER[:PASSWORD]@]HOST[:PORT]/DATABASE[?…]`` as libpq reads it."""
    cluster_key: Path | None = None
    """The file with the key that wraps the gateway's own key; None: ``cluster.key`` in the state."""
    password_file: Path | None = None
    """Holds the password, where neither the address nor ``PGPASSWORD`` does."""
    stale_s: float = STALE_S
    """Seconds for which a gateway goes on with what it knows while the server is away."""

    def __post_init__(self) -> None:
        """Raises BadStoreAddress."""
        if _URL.fullmatch(self.url) is None:
            raise BadStoreAddress(_WRITE)

    @property
    def url_without_password(self) -> str:
        """The same server, user, database and options."""
        url = re.sub(r"(://[^:@/?#]*):[^@/?#]*@", r"\1@", self.url, count=1)
        return re.sub(r"(?<=[?&])(?:ssl)?password=[^&]*(?:&|$)", "", url).rstrip("?&")

    def __str__(self) -> str:
        """The server and the database, for people: never a password."""
        found = _URL.fullmatch(self.url)
        assert found is not None
        query = dict(parse_qsl(found["query"] or ""))
        host = unquote(found["hosts"]) or query.get("host", "") or "this machine"
        database = unquote(found["database"] or "") or query.get("dbname", "")
        return f"PostgreSQL at {host}" + (f", database {database}" if database else "")
