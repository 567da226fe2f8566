"""``trunkline key``, ``token``, ``tenant``, ``price``, ``agents``, ``alias`` and ``identity``: made from
the table of resources (:mod:`gateway.api.admin.resources`)."""

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from gateway.api.admin.resources.resource import REQUIRED, Flag, Json, Operation, Resource, ResourceCommand
from gateway.api.admin.resources.table import RESOURCES
from gateway.api.admin.resources.text import cell_text
from gateway.cli.access import WHERE_OPTIONS, GatewayAccess, choose_gateway, with_gateway_options
from gateway.cli.options import JsonOption, wrong_usage
from gateway.tools.console import fail, note, print_json, print_table
from shared.process.command_line import CommandApp, command_group
from shared.protocol.errors import JoinTokenInvalid


def register(app: typer.Typer) -> None:
    """Add every resource that has commands to a command line."""
    for resource in RESOURCES:
        if resource.has_commands:
            app.add_typer(resource_group(resource), name=resource.name)


def resource_group(resource: Resource) -> CommandApp:
    """The commands of a resource."""
    group = CommandApp() if resource.default else command_group(resource.help, example=resource.example)
    for operation in resource.operations:
        for command in operation.commands:
            run = with_gateway_options(_function(resource, operation, command))
            group.command(command.name)(run)
            if command.name == resource.default:
                group.callback(invoke_without_command=True)(_default(resource, operation, command))
    return group


def _function(resource: Resource, operation: Operation, command: ResourceCommand) -> Callable[..., None]:
    """Does the operation on a gateway, from what typer reads of the command line."""
    flags = _flags(operation, command)

    def run(gateway: GatewayAccess, as_json: bool = False, **given: Any) -> None:
        names = _names(command, given.pop(resource.argument[0])) if "{" in operation.path else ()
        body = {name: _read(flags[name], name, value) for name, value in given.items() if value is not None}
        with wrong_usage():
            body = command.body(body) if command.body is not None else body
        _show(
            command,
            gateway.run(operation.name, *names, **body),
            *names[:1],
            running=gateway.running,
            as_json=as_json,
        )

    argument, help_text = resource.argument
    parameters = [_parameter(name, flag) for name, flag in flags.items()]
    if "{" in operation.path:
        parameters.insert(0, _parameter(argument, Flag(help_text, default=REQUIRED)))
    keyword = inspect.Parameter.KEYWORD_ONLY
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter("gateway", keyword),
            *parameters,
            inspect.Parameter("as_json", keyword, default=False, annotation=JsonOption),
        ]
    )
    run.__doc__ = command.help or operation.run.__doc__
    return run


def _default(resource: Resource, operation: Operation, command: ResourceCommand) -> Callable[..., None]:
    """What is done when a group is given no command of its own."""

    def run(context: typer.Context, as_json: bool, **where: Any) -> None:
        if context.invoked_subcommand is None:
            gateway = choose_gateway(context, **where)
            _show(command, gateway.run(operation.name), running=gateway.running, as_json=as_json)
            return
        for parameter in context.command.params:
            source = context.get_parameter_source(parameter.name or "")
            if source is not None and source.name == "COMMANDLINE":
                hint = parameter.opts[0]
                raise typer.BadParameter(f"put it after {context.invoked_subcommand!r}", param_hint=hint)

    keyword = inspect.Parameter.KEYWORD_ONLY
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter("context", keyword, annotation=typer.Context),
            inspect.Parameter("as_json", keyword, default=False, annotation=JsonOption),
            *(
                inspect.Parameter(name, keyword, default=None, annotation=kind)
                for name, kind in WHERE_OPTIONS.items()
            ),
        ]
    )
    run.__doc__ = f"{resource.help}\n\n    Example: {resource.example}\n    "
    return run


def _flags(operation: Operation, command: ResourceCommand) -> dict[str, Flag]:
    fields = operation.fields if command.fields is None else command.fields
    return {field.name: field.flag for field in fields if field.flag is not None}


def _parameter(name: str, flag: Flag) -> inspect.Parameter:
    options: dict[str, Any] = {
        "help": flag.help,
        "metavar": flag.metavar,
        "min": flag.least,
        "max": flag.most,
    }
    info = typer.Option(*flag.names.split(), **options) if flag.names else typer.Argument(**options)
    optional = flag.default is None
    default = inspect.Parameter.empty if flag.default is REQUIRED else flag.default
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[flag.type | None if optional else flag.type, info],
    )


def _names(command: ResourceCommand, name: str) -> tuple[str, ...]:
    """Of the record that is meant. Ends the command for a token that cannot be read."""
    try:
        with wrong_usage():
            return (name if command.read_name is None else command.read_name(name),)
    except JoinTokenInvalid as error:
        fail(str(error))


def _read(flag: Flag, name: str, value: Any) -> Any:
    with wrong_usage(flag.hint(name)):
        return value if flag.read is None else flag.read(value)


def _show(command: ResourceCommand, facts: Json, name: str = "", *, running: bool, as_json: bool) -> None:
    """Print what was answered: all of it as JSON, or what people are told."""
    table = command.table
    if as_json:
        print_json(facts if table is None else facts[table.member])
    elif table is not None:
        rows = [[cell_text(each, cell) for cell in table.columns.values()] for each in facts[table.member]]
        print_table(list(table.columns), rows, table.when_empty.format(named=name))
    else:
        said = facts | {"named": name}
        note(command.note.format(**said) if isinstance(command.note, str) else command.note(said))
        if command.last_line:
            print(facts[command.last_line])  # noqa: T201
    for line in command.warn(facts, running) if command.warn is not None else ():
        note(line)
