"""Pydantic models of the bodies and queries that operations take over HTTP, made from their fields."""

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, create_model
from pydantic import Field as Constraint

from gateway.api.admin.resources.resource import REQUIRED, Field, Operation
from gateway.api.admin.resources.table import OPERATIONS
from gateway.domain.scopes import AdminRole


def _model(operation: Operation) -> type[BaseModel]:
    """Members that nobody knows are refused: a misspelt limit is none. What is in a query is text, so it is
    read as what is wanted."""
    config = ConfigDict(extra="ignore" if operation.takes_unknown else "forbid", strict=not operation.query)
    return _object(operation.name, operation.fields, config)


def _object(name: str, fields: Sequence[Field], config: ConfigDict) -> type[BaseModel]:
    members: dict[str, Any] = {each.name: _member(each, config) for each in fields}
    return create_model(name, __config__=config, **members)


def _member(field: Field, config: ConfigDict) -> tuple[Any, Any]:
    """Its type and its default."""
    value: Any = _object(field.name, field.type, config) if isinstance(field.type, tuple) else field.type
    if field.pattern is not None:
        value = Annotated[value, Constraint(pattern=field.pattern)]
    if value is AdminRole:
        value = Annotated[value, Constraint(strict=False)]
    if field.default is None:
        return value | None, None
    return value, ... if field.default is REQUIRED else field.default


MODELS = {
    operation.name: _model(operation)
    for operation in OPERATIONS.values()
    if operation.fields and not operation.only_here
}
"""The body of each operation. Operations without one ignore what they are sent."""
