"""The settings of one engine."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

NAME_CHARS = 60
"""The longest name made of a host; two more characters distinguish engines of one host and port."""


OUTPUT_BYTES = 4 * 1024**3

MANAGEMENT_PORT = 8081
"""Where TorchServe's management API is unless it is told otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTimeouts:
    """How long an engine may be silent. None: for ever."""

    connect_s: float = 5.0
    first_byte_s: float | None = 600.0
    """From the end of the request's body to the response's head. Long: an engine may have a queue."""
    idle_s: float | None = 300.0
    """Between two pieces of the response's body, once all of the request's was sent, and for the engine to
    take the next of the request's."""
    probe_s: float = 5.0
    """For a whole answer to a question about models, health or load."""

    @property
    def still_s(self) -> float | None:
        """So long no request may be silent before or in its answer; None: for ever."""
        if self.first_byte_s is None or self.idle_s is None:
            return None
        return max(self.first_byte_s, self.idle_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """One engine. Requests go to ``url``, its scheme, host, port and path prefix, and nowhere else.

    With ``unix_socket`` the connection is made to that socket and ``url`` (``http://localhost`` will do)
    only fills the Host header.
    """

    url: str
    name: str = "engine"
    unix_socket: Path | None = None
    api_key: str | None = field(default=None, repr=False)
    """Sent as ``authorization: Bearer …`` in place of whatever the request carried."""
    slots: int | None = None
    """Requests it may have at once; None: what the engine reports, else the default of its kind."""
    models: tuple[str, ...] = ()
    """Only these are offered; empty: all it lists."""
    health: str | None = None
    """A path that answers below 400 while the engine serves ``models``, which are then not asked for: for an
    engine without ``/v1/models``."""
    protocol: str = "openai"
    """What it speaks: ``openai``, ``kserve``, ``comfyui``, ``tensorflow`` or ``torchserve``."""
    workflows: Path | None = None
    """Of ``comfyui``: the directory of its workflows."""
    output_bytes: int = OUTPUT_BYTES
    """Of ``comfyui``: the longest file of an answer."""
    management: str | None = None
    """Of ``torchserve``: the URL of its management API, which lists its models; None: ``models`` are they."""
    management_key: str | None = field(default=None, repr=False)
    """Sent there as ``api_key`` is to the engine."""
    loads: bool = False
    """Of ``kserve``: models that are not loaded are offered, and loaded when a request needs them."""
    version: str = ""
    """The version of its deployments; it is only used to choose among deployments."""
    continues: Mapping[str, str] | None = None
    """Route → how it is asked to go on with another's answer; None: what is known of its kind."""
    stateful: bool | None = None
    """Whether requests for its own paths that belong together must go to the same engine; None: what is
    known of its kind."""
    restart: tuple[str, ...] = ()
    """A command that restarts an engine which the agent has not started, when it hangs; empty: there is
    none."""
    hung_s: float = 60.0
    """With ``restart``: without any answer for so long it hangs."""
    ready_s: float = 600.0
    """With ``restart``: how long it may take to serve after it."""
    gpus: tuple[int, ...] = ()
    """Indices of the host's GPUs that it uses; empty: not known."""
    refresh_s: float = 5.0
    """How often models, health and load are asked for."""
    timeouts: EngineTimeouts = EngineTimeouts()


def origin_name(url: str) -> str:
    """The host and the port of ``url`` as a name may be written: ``127.0.0.1-8000``."""
    parts = urlsplit(url)
    host = "localhost" if parts.hostname == "::1" else parts.hostname or "engine"
    words = [host, *([] if parts.port is None else [str(parts.port)])]
    letters = [c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in "-".join(words).lower()]
    return "".join(letters).strip("._-")[:NAME_CHARS].rstrip("._-") or "engine"


def at_port(url: str, port: int) -> str:
    """The same host at another port, without a path."""
    parts = urlsplit(url)
    host = parts.hostname or "localhost"
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def base_url(url: str) -> str:
    """``url`` without a closing slash and without ``/v1``, which the paths of requests bring themselves.

    Raises ValueError, saying what is wrong, for anything but ``http[s]://host[:port][/prefix]``.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is not an engine's URL: write http://HOST:PORT")
    if parts.username or parts.password or "@" in parts.netloc:
        raise ValueError("an engine's URL holds no credentials: give its key as api_key")
    if parts.query or parts.fragment:
        raise ValueError(f"{url!r} is not an engine's URL: it has a query or a fragment")
    _ = parts.port  # raises ValueError for what is no port
    try:
        parts.netloc.encode("ascii" if parts.netloc.isascii() else "idna")
    except UnicodeError as error:
        raise ValueError(f"{url!r} is not an engine's URL: its host is no name ({error})") from error
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path}"
