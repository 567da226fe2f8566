"""Engines' own paths, ``/engines/{model}/…``: which of them manage it, and where answers may lead."""

from gateway.domain.engine_paths.managing import KINDS, BadRule, EnginePaths
from gateway.domain.engine_paths.references import (
    REWRITTEN,
    check_redirect,
    client_reference,
    rewritten_headers,
)

__all__ = [
    "KINDS",
    "REWRITTEN",
    "BadRule",
    "EnginePaths",
    "check_redirect",
    "client_reference",
    "rewritten_headers",
]
