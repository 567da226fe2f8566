"""How an agent may be called (PROTOCOL §8.4)."""

import re

NAME_CHARS = 63
"""Longest name: one label of a host name, which is what most agents are called after."""

NAME_RULE = (
    "a name is 1 to 63 of a-z, 0-9, '.', '_' and '-', and begins with a letter or digit (for example gpu-7)"
)

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


def is_name(text: str) -> bool:
    """True for a name that can stand in a certificate: ``[a-z0-9]([a-z0-9._-]{0,62})``."""
    return _NAME.fullmatch(text) is not None
