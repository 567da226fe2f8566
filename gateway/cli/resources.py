"""``trunkline key``, ``token``, ``tenant``, ``price``, ``agents``, ``alias`` and ``identity``: made from
the table of resources (:mod:`gateway.api.admin.resources`)."""

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from gateway.api.admin.resources.resource import REQUIRED, Field, Json, Operation, Resource, ResourceCommand
from gateway.api.admin.resources.table import RESOURCES
from gateway.api.admin.resources.text import cell_text
from gateway.cli.access import GatewayAccess, with_gateway_options
from gateway.cli.options import JsonOption, wrong_usage
from gateway.cli_support.console import fail, note, print_json, print_table
from shared.process.command_line import CommandApp, command_group
from shared.protocol.errors import JoinTokenInvalid


def register(app: typer.Typer) -> None:
    """Add every resource whose operations name commands; the others have commands of their own."""
    groups: dict[str, typer.Typer] = {"": app}
    for resource in RESOURCES:
        if any(operation.commands for operation in resource.operations):
            group = groups[resource.name] = resource_group(resource)
            groups[resource.within].add_typer(group, name=resource.name)


def resource_group(resource: Resource) -> CommandApp:
    """The commands of a resource."""
    group = CommandApp() if resource.default else command_group(resource.help, example=resource.example)
    for operation in resource.operations:
        for command in operation.commands:
            run = _function(resource, operation, command)
            group.command(command.name)(with_gateway_options(run))
            if command.name == resource.default:
                run.__doc__ = f"{resource.help}\n\n    Example: {resource.example}\n    "
                group.callback(invoke_without_command=True)(with_gateway_options(run))
    return group


def _function(resource: Resource, operation: Operation, command: ResourceCommand) -> Callable[..., None]:
    """Does the operation on a gateway, from what typer reads of the command line."""
    argument, help_text = resource.argument
    fields = operation.fields if command.fields is None else command.fields
    given_fields = {field.name: field for field in fields if field.help}
    of_record = "{" in operation.path

    def run(gateway: GatewayAccess, as_json: bool = False, **given: Any) -> None:
        names = (_read_name(command, given.pop(argument)),) if of_record else ()
        body = {name: _read(given_fields[name], value) for name, value in given.items() if value is not None}
        with wrong_usage():
            body = command.body(body) if command.body is not None else body
        facts = gateway.run(operation.name, *names, **body)
        _show(command, facts, *names, running=gateway.running, as_json=as_json)

    name_field = (Field(argument, str, help_text, option="", default=REQUIRED),) if of_record else ()
    keyword = inspect.Parameter.KEYWORD_ONLY
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter("gateway", keyword),
            *map(_parameter, (*name_field, *given_fields.values())),
            inspect.Parameter("as_json", keyword, default=False, annotation=JsonOption),
        ]
    )
    run.__doc__ = command.help or operation.run.__doc__
    return run


def _parameter(field: Field) -> inspect.Parameter:
    about: dict[str, Any] = {
        "help": field.help,
        "metavar": field.metavar,
        "min": field.least,
        "max": field.most,
    }
    info = typer.Option(*field.options, **about) if field.options else typer.Argument(**about)
    kind, default = field.command_type, field.command_default
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if default is REQUIRED else default,
        annotation=Annotated[kind | None if default is None else kind, info],
    )


def _read_name(command: ResourceCommand, name: str) -> str:
    """The name of the record that is meant. Ends the command for a token that cannot be read."""
    try:
        with wrong_usage():
            return name if command.read_name is None else command.read_name(name)
    except JoinTokenInvalid as error:
        fail(str(error))


def _read(field: Field, value: Any) -> Any:
    with wrong_usage(field.hint):
        return value if field.read is None else field.read(value)


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
