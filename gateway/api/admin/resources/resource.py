"""What a resource of a gateway's state is made of: its operations, their fields, and the commands that ask
for them.

Pure data, which imports neither the store nor HTTP nor the command line: a command that asks another machine
needs none of them, and a gateway needs no command line.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Final, get_args, get_origin

from gateway.domain.scopes import AdminRole

if TYPE_CHECKING:
    from gateway.storage import Store

LONGEST_S = 900.0
"""The longest that an operation in a process of its own may take."""

Json = dict[str, Any]


def facts_of(record: object, names: Iterable[str]) -> Json:
    """The attributes of ``record`` that have these names."""
    return {name: getattr(record, name) for name in names}


REQUIRED: Final = object()
"""The default of a field that must be given."""


class BadInput(ValueError):
    """What was given cannot be used. The message says why; ``hint`` names the option, where it is known."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class AdminRequest:
    """One operation that is asked for, by a command or over HTTP."""

    wall_s: float
    """Now, in seconds since 1970."""
    serves: Callable[[str, str | None], bool]
    """Whether somebody serves this model, in this version or, for None, in any."""
    names: tuple[str, ...] = ()
    """Those in the operation's path, in its order."""
    body: Mapping[str, Any] = field(default_factory=dict)
    """Members by name, each of its type; those that are not given stay as they are or have their default."""

    @property
    def name(self) -> str:
        """The name of the record in question."""
        return self.names[0]


Run = Callable[["Store", AdminRequest], Json]
"""Does an operation. Waits for the disk; raises RecordError, StateError, and ValueErrors of the domain for
values that cannot be."""


@dataclass(frozen=True, slots=True)
class Field:
    """A member of a body or of a query, and how the command line gives it."""

    name: str
    type: Any
    """As pydantic takes it, or the fields of an object. With the default None it may also be null."""
    help: str = ""
    """The help of the commands' option or argument; empty: commands do not have it."""
    _: KW_ONLY
    default: Any = None
    """The value if the member or the option is not given. None: there is none."""
    pattern: str | None = None
    option: str | None = None
    """As written on the command line, separated by blanks; None: ``--`` and the name. Empty: an argument."""
    option_type: Any = None
    """What the command line is read as, where that is not ``type``; ``read`` makes the member from it."""
    option_default: str | None = None
    """The default as the command line writes it, where ``default`` is not what is written there."""
    read: Callable[[Any], Any] | None = None
    """Raises ValueError."""
    metavar: str | None = None
    least: float | None = None
    most: float | None = None

    @property
    def options(self) -> tuple[str, ...]:
        """Every way to write the option; none for an argument."""
        return (f"--{self.name.replace('_', '-')}",) if self.option is None else tuple(self.option.split())

    @property
    def hint(self) -> str:
        """What messages call it."""
        return next(iter(self.options), self.metavar or self.name.upper())

    @property
    def command_type(self) -> Any:
        """What the command line is read as."""
        of = self.type if self.option_type is None else self.option_type
        return get_args(of)[0] if get_origin(of) is Annotated else of

    @property
    def command_default(self) -> Any:
        """What the command line takes when nothing is given; None: the member is not sent."""
        if self.option_default is not None:
            return self.option_default
        return None if isinstance(self.default, list | dict) else self.default


@dataclass(frozen=True, slots=True)
class Table:
    """How a list is shown to people. ``--json`` shows the list itself."""

    member: str
    """The member of the answer that holds the list."""
    columns: Mapping[str, str | Callable[[Json], str]]
    """For each heading, the name of a fact or a function that makes the text from all facts."""
    when_empty: str
    """May hold ``{named!r}``."""


@dataclass(frozen=True, slots=True)
class ResourceCommand:
    """A command that asks for an operation."""

    name: str
    note: str | Callable[[Json], str] = ""
    """The message for people: made from the facts answered and ``named``, the name that was given."""
    _: KW_ONLY
    help: str = ""
    """Empty: the docstring of the operation's function."""
    fields: tuple[Field, ...] | None = None
    """What it gives, where that is not the operation's fields."""
    body: Callable[[Json], Json] | None = None
    """Makes the body from what the options gave. Raises BadInput."""
    read_name: Callable[[str], str] | None = None
    """Makes the record's name from what was given. Raises BadInput."""
    table: Table | None = None
    warn: Callable[[Json, bool], Iterable[str]] | None = None
    """Warnings, shown beside ``--json`` too: from the answer, and whether the gateway runs."""
    last_line: str = ""
    """The fact that is printed alone, to stdout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """Something that is done to the gateway's state."""

    name: str
    """``create_key``: also what the log and ``/openapi.json`` call it."""
    method: str
    path: str
    """With names of records in braces, ``:path`` behind those that may hold slashes (Starlette's form)."""
    role: AdminRole
    """The least role that may do it over HTTP."""
    run: Run
    fields: tuple[Field, ...] = ()
    """The fields of the body, or of the query if the method is GET."""
    commands: tuple[ResourceCommand, ...] = ()
    makes_state: bool = False
    """On a state directory that is empty, too: the command makes the state."""
    takes_unknown: bool = False
    """Unknown members of the body are ignored, and not refused."""
    own_process: bool = False
    """It may take minutes: a gateway does it in a process of its own, once at a time."""
    only_here: str = ""
    """Why it is done on the gateway's host only; empty where it is done over HTTP, too."""

    @property
    def timeout_s(self) -> float:
        """How long a client waits for the answer over HTTP."""
        return LONGEST_S if self.own_process else 30.0

    @property
    def query(self) -> tuple[str, ...]:
        """What it takes in the query."""
        return tuple(each.name for each in self.fields) if self.method == "GET" else ()

    def completed(self, request: AdminRequest) -> AdminRequest:
        """``request`` with the defaults of fields that were not given."""
        defaults = {each.name: each.default for each in self.fields if each.default not in (None, REQUIRED)}
        return replace(request, body=defaults | dict(request.body))


@dataclass(frozen=True, slots=True, eq=False)
class Resource:
    """One kind of record and its operations, whose commands are a group of its name."""

    name: str
    path: str
    """Of operations that say none."""
    help: str
    _: KW_ONLY
    example: str
    argument: tuple[str, str] = ("name", "Its name or id.")
    """How commands name a record: the parameter and its help."""
    role: AdminRole = AdminRole.ADMIN
    """Of operations that say none."""
    default: str = ""
    """The command that is meant when none is given."""
    within: str = ""
    """The name of the resource, earlier in the table, among whose commands the group of this one is."""
    operations: list[Operation] = field(default_factory=list)

    def operation(
        self,
        method: str,
        below: str = "",
        *commands: ResourceCommand,
        role: AdminRole | None = None,
        **more: Any,
    ) -> Callable[[Run], Run]:
        """Add the function underneath as an operation at the path ``below`` that of the resource; ``more``
        are members of :class:`Operation`."""

        def add(run: Run) -> Run:
            where = {"method": method, "path": self.path + below, "role": role or self.role}
            self.operations.append(Operation(name=run.__name__, run=run, commands=commands, **(where | more)))
            return run

        return add
