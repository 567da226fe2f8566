"""Which gateway a command works on: a state directory on this machine, or a running gateway over HTTP.

On a state directory it works whether or not a gateway runs there, and a running one acts on it at once. Over
HTTP it takes a key with a role. Both do the operations of :mod:`gateway.api.admin.resources`, so a command
cannot tell them apart. Explanations go to stderr, data to stdout; exit 0 done, 1 failed, 2 wrong usage
(SURFACE).
"""

import contextlib
import functools
import inspect
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, urlencode

import typer

from gateway.api.admin.resources.resource import AdminRequest
from gateway.api.admin.resources.table import OPERATIONS, run_operation
from gateway.cli.options import CaOption, KeyOption, OptionalUrlOption, StateOption
from gateway.domain.state_dir import DATABASE_NAME, own_state_dir
from gateway.tools.console import fail, note
from shared.process.imports import without_collection

if TYPE_CHECKING:
    from gateway.storage import Store
    from gateway.tools.gateway_client import GatewayClient

DEFAULT_URL = "http://127.0.0.1:8700"

SERVED_S = 7200.0
"""A model was served until now, for who sees only the state: a gateway writes it down every hour."""

Json = dict[str, Any]

_PLACEHOLDER = re.compile(r"{\w+(:path)?}")
"""Of a record's name in the path of an operation, and whether it may hold slashes."""


class GatewayAccess(Protocol):
    """Somebody who does operations on one gateway."""

    running: bool
    """Whether it is a gateway that runs; else its state."""

    def do(self, operation: str, *names: str, **body: Any) -> Json:
        """The operation's answer, for records of these names. Raises typer.Exit and typer.BadParameter."""


class StateAccess:
    """Works on a state directory."""

    running = False

    def __init__(self, state: Path) -> None:
        self._state = state

    def do(self, operation: str, *names: str, **body: Any) -> Json:
        _check_names(operation, names)
        with without_collection():
            from gateway.cli.state import opened

        with opened(self._state, create=OPERATIONS[operation].makes_state) as store:
            asked = AdminRequest(time.time(), functools.partial(_was_served, store), names, body)
            return run_operation(store, operation, asked)


class HttpAccess:
    """Asks a running gateway."""

    running = True

    def __init__(self, url: str, key: str | None, ca_file: Path | None) -> None:
        self._ask = functools.partial(asking, url, key, ca_file)

    def do(self, operation: str, *names: str, **body: Any) -> Json:
        _check_names(operation, names)
        wanted = OPERATIONS[operation]
        if wanted.only_here:
            raise typer.BadParameter(f"this is not done over HTTP: {wanted.only_here}", param_hint="--url")
        method, path = wanted.method, wanted.path
        for name in names:
            begin, end = path.index("{"), path.index("}") + 1
            path = path[:begin] + quote(name, safe="", errors="surrogateescape") + path[end:]
        if wanted.query:
            given = {name: value for name, value in body.items() if value not in (None, "")}
            path, body = f"{path}?{urlencode(given)}" if given else path, {}
        with self._ask() as client:
            path = path.removeprefix("/admin/")
            return client.ask(method, path, body=body or None, timeout_s=wanted.timeout_s)


def _check_names(operation: str, names: tuple[str, ...]) -> None:
    """No record has such a name, and the path of a request could not have it. Raises typer.BadParameter."""
    placeholders = _PLACEHOLDER.findall(OPERATIONS[operation].path)
    for name, kind in zip(names, placeholders, strict=True):
        if not name or (not kind and "/" in name) or any(each < " " or each == "\x7f" for each in name):
            raise typer.BadParameter(f"{name!r} names nothing here; list what there is")


def _was_served(store: "Store", model: str, version: str | None) -> bool:
    known = store.models.list(1_000_000)
    return any(fact.name == model and time.time() - fact.last_s < SERVED_S for fact in known)


@contextlib.contextmanager
def asking(url: str, key: str | None, ca_file: Path | None) -> Iterator["GatewayClient"]:
    """A client; what it cannot do ends the command with exit code 1, what it may not be asked with 2."""
    from gateway.tools.gateway_client import GatewayClient, GatewayFailed

    if not key:
        raise typer.BadParameter(
            "a running gateway wants a key with a role: give it here or in TRUNKLINE_KEY. On the gateway's "
            "host `trunkline key create --name NAME --role viewer` makes one",
            param_hint="--key",
        )
    try:
        client = GatewayClient(url, key, ca_file)
    except GatewayFailed as error:
        raise typer.BadParameter(str(error)) from error
    try:
        yield client
    except GatewayFailed as error:
        said = str(error).removesuffix(".")
        if error.status == 400:
            raise typer.BadParameter(said) from error
        fail(said)


WHERE_OPTIONS = {"state": StateOption, "url": OptionalUrlOption, "key": KeyOption, "ca_file": CaOption}
"""Say which gateway a command works on."""


def on_a_gateway(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that say which gateway it works on; ``function`` gets it as its first
    argument."""
    _, *others = inspect.signature(function, eval_str=True).parameters.values()

    @functools.wraps(function)
    def command(
        context: typer.Context,
        state: Path | None,
        url: str | None,
        key: str | None,
        ca_file: Path | None,
        **options: Any,
    ) -> None:
        function(chosen(context, state, url, key, ca_file), **options)

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter("context", keyword, annotation=typer.Context),
        *(each.replace(kind=keyword) for each in others),
        *(
            inspect.Parameter(name, keyword, default=None, annotation=kind)
            for name, kind in WHERE_OPTIONS.items()
        ),
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def chosen(
    context: typer.Context, state: Path | None, url: str | None, key: str | None, ca_file: Path | None
) -> GatewayAccess:
    """What the options and the environment name: first options, then ``TRUNKLINE_STATE``, then a state in the
    usual place on this machine, then ``TRUNKLINE_URL``. So commands on a gateway's host go on working on its
    state. Raises typer.BadParameter for options that name two gateways."""
    on_line = {name for name in ("state", "url", "key") if _is_on_the_line(context, name)}
    if "state" in on_line and "url" in on_line:
        raise typer.BadParameter("give --state or --url, not both", param_hint="--url")
    if "state" not in on_line and on_line:
        return HttpAccess(url or DEFAULT_URL, key, ca_file)
    if state is not None:
        return StateAccess(state)
    usual = own_state_dir()
    if url is None:
        return StateAccess(usual)
    if _holds_a_state(usual):
        note(f"This works on the state in {usual}; for the gateway at TRUNKLINE_URL give --url.")
        return StateAccess(usual)
    return HttpAccess(url, key, ca_file)


def _holds_a_state(directory: Path) -> bool:
    try:
        return (directory / DATABASE_NAME).exists()
    except OSError:
        return True  # the command says what is the matter with it


def _is_on_the_line(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
