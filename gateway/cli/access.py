"""Which gateway a command works on: a state directory on this machine, or a running gateway over HTTP.

On a state directory it works whether or not a gateway runs there, and a running one acts on it at once. Over
HTTP it takes a key with a role. Both do the operations of :mod:`gateway.api.admin.resources`, so a command
cannot tell them apart. Explanations go to stderr, data to stdout; exit 0 done, 1 failed, 2 wrong usage.
"""

import contextlib
import functools
import inspect
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote, urlencode

import typer

from gateway.api.admin.resources.resource import AdminRequest, Operation
from gateway.cli.options import (
    CaOption,
    ClusterKeyOption,
    KeyOption,
    OptionalUrlOption,
    StateOption,
    StoreOption,
    StorePasswordOption,
    store_address,
)
from gateway.cli_support.asked_gateway import DEFAULT_URL, gateway_client
from gateway.cli_support.console import fail, note
from gateway.domain.state_dir import ADDRESS_NAME, DATABASE_NAME, own_state_dir
from gateway.domain.store_address import StoreAddress
from shared.process.startup import without_collection
from shared.protocol.errors import JoinTokenInvalid

if TYPE_CHECKING:
    from gateway.storage import Store

SERVED_S = 7200.0
"""A model counts as served if it was within so many seconds by the state, where a gateway notes it hourly."""

Json = dict[str, Any]

_PLACEHOLDER = re.compile(r"{\w+(:path)?}")
"""The place of a record's name in an operation's path; its group says that the name may hold slashes."""


@dataclass(frozen=True)
class StateAccess:
    """Works on a state directory."""

    state: Path
    address: StoreAddress | None = None
    """Of a server with the state; None: its files are in the directory, or what the gateway there uses."""
    running: ClassVar = False
    """It does not ask a running gateway."""

    def run(self, operation: str, *names: str, **body: Any) -> Json:
        """The operation's answer, for records of these names. Raises typer.Exit and typer.BadParameter."""
        from gateway.api.admin.resources.table import run_operation

        with open_store(self.state, self.address, create=_checked(operation, names).makes_state) as store:
            request = AdminRequest(time.time(), functools.partial(_was_served, store), names, body)
            return run_operation(store, operation, request)


@dataclass(frozen=True)
class HttpAccess:
    """Asks a running gateway."""

    url: str
    key: str | None = field(repr=False)
    ca_file: Path | None
    running: ClassVar = True

    def run(self, operation: str, *names: str, **body: Any) -> Json:
        """As of :class:`StateAccess`."""
        wanted = _checked(operation, names)
        if wanted.only_here:
            raise typer.BadParameter(f"this is not done over HTTP: {wanted.only_here}", param_hint="--url")
        method, path = wanted.method, wanted.path
        for name in names:
            begin, end = path.index("{"), path.index("}") + 1
            path = path[:begin] + quote(name, safe="", errors="surrogateescape") + path[end:]
        if wanted.query:
            given = {name: value for name, value in body.items() if value not in (None, "")}
            path, body = f"{path}?{urlencode(given)}" if given else path, {}
        with gateway_client(self.url, self.key, self.ca_file) as client:
            path = path.removeprefix("/admin/")
            return client.ask(method, path, body=body or None, timeout_s=wanted.timeout_s)


GatewayAccess = StateAccess | HttpAccess
"""Runs operations on one gateway."""


def read_pages(gateway: GatewayAccess, operation: str, member: str, **body: Any) -> Iterator[Any]:
    """What the answers of an operation hold in ``member``, page after page."""
    after = None
    while True:
        page = gateway.run(operation, after=after, **body)
        yield from page[member]
        after = page["next"]
        if after is None:
            return


def _checked(operation: str, names: tuple[str, ...]) -> Operation:
    """The operation of this name. Raises typer.BadParameter for names that no record has and no path holds.

    The table of resources is imported here because ``status`` and ``models`` do without it.
    """
    from gateway.api.admin.resources.table import OPERATIONS

    found = OPERATIONS[operation]
    placeholders = _PLACEHOLDER.findall(found.path)
    for name, kind in zip(names, placeholders, strict=True):
        if not name or (not kind and "/" in name) or any(each < " " or each == "\x7f" for each in name):
            raise typer.BadParameter(f"{name!r} names nothing here; list what there is")
    return found


@contextlib.contextmanager
def open_store(state: Path, address: StoreAddress | None, *, create: bool) -> Iterator["Store"]:
    """The store in ``state`` or at ``address``. Its errors end the command: values that it does not take with
    exit code 2, the others with 1."""
    with without_collection():
        from gateway.storage import Store
        from gateway.storage.errors import BadValue, RecordError, StateError
    try:
        with Store.open(state, create=create, address=address) as store:
            yield store
            if store.address is None:  # else the gateways take the note up, each host has its own log
                _record_acts(store)
    except BadValue as error:
        raise typer.BadParameter(str(error)) from error
    except UnicodeEncodeError as error:
        raise typer.BadParameter("what was given holds bytes that are no text (UTF-8)") from error
    except (StateError, RecordError, JoinTokenInvalid) as error:
        fail(str(error))


def _record_acts(store: "Store") -> None:
    """Take the note of what the command has done, which is in the state with it, into the audit log."""
    from gateway.storage.errors import StateError

    try:
        if store.acts.pending(1):
            from gateway.observability.audit import append_pending_acts

            append_pending_acts(store)
    except StateError as error:
        note(f"trunkline: this is done; the audit log will have it as soon as it can be written ({error})")


def _was_served(store: "Store", model: str, version: str | None) -> bool:
    known = store.models.list(1_000_000)
    return any(fact.name == model and time.time() - fact.last_s < SERVED_S for fact in known)


STORE_OPTIONS = {
    "store": StoreOption,
    "cluster_key": ClusterKeyOption,
    "store_password_file": StorePasswordOption,
}
GATEWAY_OPTIONS = {
    "state": StateOption,
    **STORE_OPTIONS,
    "url": OptionalUrlOption,
    "key": KeyOption,
    "ca_file": CaOption,
}
"""Say which gateway a command works on."""


def with_gateway_options(function: Callable[..., None]) -> Callable[..., None]:
    """A command with the options that say which gateway it works on. ``function`` gets the GatewayAccess as
    its first argument. As the callback of a group it runs when no command of the group is given."""
    _, *others = inspect.signature(function, eval_str=True).parameters.values()

    @functools.wraps(function)
    def command(
        context: typer.Context,
        state: Path | None,
        store: str | None,
        cluster_key: Path | None,
        store_password_file: Path | None,
        url: str | None,
        key: str | None,
        ca_file: Path | None,
        **options: Any,
    ) -> None:
        if context.invoked_subcommand is None:
            address = store_address(store, cluster_key, store_password_file)
            function(choose_gateway(context, state, address, url, key, ca_file), **options)
        else:
            _refuse_options(context, context.invoked_subcommand)

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter("context", keyword, annotation=typer.Context),
        *(each.replace(kind=keyword) for each in others),
        *(
            inspect.Parameter(name, keyword, default=None, annotation=kind)
            for name, kind in GATEWAY_OPTIONS.items()
        ),
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def _refuse_options(context: typer.Context, command: str) -> None:
    """Raises typer.BadParameter for options of a group, of which its commands would hear nothing."""
    for parameter in context.command.params:
        if _is_given(context, parameter.name or ""):
            raise typer.BadParameter(f"put it after {command!r}", param_hint=parameter.opts[0])


def choose_gateway(
    context: typer.Context,
    state: Path | None,
    address: StoreAddress | None,
    url: str | None,
    key: str | None,
    ca_file: Path | None,
) -> GatewayAccess:
    """The gateway that the options and the environment name: first options, then ``TRUNKLINE_STATE`` and
    ``TRUNKLINE_STORE``, then a state in the usual place on this machine, then ``TRUNKLINE_URL``. So commands
    on a gateway's host go on working on its state. Raises typer.BadParameter for options that name two
    gateways."""
    on_line = {name for name in ("state", "store", "url", "key") if _is_given(context, name)}
    for name in ("state", "store"):
        if name in on_line and "url" in on_line:
            raise typer.BadParameter(f"give --{name} or --url, not both", param_hint="--url")
    if not {"state", "store"} & on_line and on_line:
        return HttpAccess(url or DEFAULT_URL, key, ca_file)
    if state is not None or address is not None:
        return StateAccess(state or own_state_dir(), address)
    usual = own_state_dir()
    if url is None:
        return StateAccess(usual)
    if _holds_a_state(usual):
        note(f"This works on the state in {usual}; for the gateway at TRUNKLINE_URL give --url.")
        return StateAccess(usual)
    return HttpAccess(url, key, ca_file)


def _holds_a_state(directory: Path) -> bool:
    try:
        return any((directory / name).exists() for name in (DATABASE_NAME, ADDRESS_NAME))
    except OSError:
        return True  # opening it says why it cannot be read


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
