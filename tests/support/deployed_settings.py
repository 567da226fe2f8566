"""What files of ``deploy/`` may set and call: the settings and the command line of the programs."""

import re
import types
import typing
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from pydantic import BaseModel
from typer.main import get_command

from agent.config.config import AgentConfig
from agent.config.sources import PREFIX as AGENT
from gateway.runtime.config.settings import PREFIX as GATEWAY
from gateway.runtime.config.settings import Settings
from shared.process.cli import build

_OURS = re.compile(r"TRUNKLINE_[A-Z0-9_]+")


def unknown_variables(environment: Mapping[str, object]) -> list[str]:
    """Those named TRUNKLINE_… that no program reads."""
    return [name for name in environment if _OURS.fullmatch(name) and not _is_known(name)]


def _is_known(name: str) -> bool:
    for prefix, model in ((GATEWAY, Settings), (AGENT, AgentConfig)):
        if name.startswith(prefix):
            return _is_field(model, name.removeprefix(prefix).lower().split("__"))
    return name in _variables_of_options()


def _is_field(model: type[BaseModel], path: Sequence[str]) -> bool:
    if path[0] not in model.model_fields:
        return False
    if len(path) == 1:
        return True
    annotation = model.model_fields[path[0]].annotation
    members = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
    tables = [each for each in members if isinstance(each, type) and issubclass(each, BaseModel)]
    return any(_is_field(table, path[1:]) for table in tables)


@cache
def _commands() -> Any:
    found: Any = get_command(build())
    context = found.context_class(found)
    for name in list(found.commands):  # they are imported where they are used
        found.resolve_command(context, [name])
    return found


@cache
def _variables_of_options() -> frozenset[str]:
    found: set[str] = set()
    waiting: list[Any] = [_commands()]
    while waiting:
        command = waiting.pop()
        waiting += getattr(command, "commands", {}).values()
        for parameter in command.params:
            names = parameter.envvar or ()
            found |= {names} if isinstance(names, str) else set(names)
    return frozenset(found)


def wrong_words(arguments: Sequence[str]) -> list[str]:
    """What the command line does not know of the words after ``trunkline``."""
    command = _commands()
    rest = list(arguments)
    while rest and rest[0] in getattr(command, "commands", {}):
        command = command.commands[rest.pop(0)]
    if len(rest) == len(arguments):
        return list(arguments[:1]) or ["no command"]
    options = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
    return [word for word in rest if word.startswith("-") and word.partition("=")[0] not in options]
