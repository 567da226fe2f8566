"""Values that are made all the time and never changed."""

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[T]) -> type[T]:
    """A dataclass with slots that type checkers hold to be frozen.

    At run time nothing guards it: what dataclasses do for that makes a value of sixteen fields in 3.5 µs
    instead of 0.5. For values made for every request or frame; others are ``@dataclass(frozen=True)``.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)
