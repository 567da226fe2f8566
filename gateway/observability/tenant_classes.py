"""Which class each tenant counts under in metrics. The number of series is that of the classes, whatever
tenants there are."""

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache

from gateway.observability.metric_table import OTHER

_REMEMBERED = 10_000
"""Tenants whose classes are not looked for again."""


def tenant_classes(classes: Mapping[str, Sequence[str]]) -> Callable[[str], str] | None:
    """Says of a tenant the first of ``classes`` that has a pattern for it (``fnmatch``, case counts), else
    ``other``. None where there are no classes."""
    if not classes:
        return None

    @lru_cache(_REMEMBERED)
    def class_of(tenant: str) -> str:
        for name, patterns in classes.items():
            if any(fnmatchcase(tenant, pattern) for pattern in patterns):
                return name
        return OTHER

    return class_of
