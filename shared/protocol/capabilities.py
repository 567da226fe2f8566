"""The words in which engines say what a model can do (PROTOCOL §4.7). Pure, and quick to import."""

import re
from itertools import islice
from typing import Any

from shared.protocol import limits

CAPABILITY = re.compile(rf"[\w.:-]{{1,{limits.CAPABILITY_CHARS}}}", re.ASCII)
"""A word that an engine says of a model."""


def usable_capabilities(value: Any) -> tuple[str, ...]:
    """Those that are words, each once, as many as there is room for. Raises ValueError for no list."""
    if not isinstance(value, list):
        raise ValueError("must be a list of strings")  # noqa: TRY004 (what pydantic takes)
    words = (each for each in value if isinstance(each, str) and CAPABILITY.fullmatch(each))
    return tuple(islice(dict.fromkeys(words), limits.MODEL_CAPABILITIES))
