"""What every side of the comparison of text generation is asked; imports nothing that takes long."""

PROMPT = "Once upon a time there was a machine that answered "
_TIMES, _LEAST = 2, 8
"""How often so many requests are sent at once while it is measured: so often, and so many in all at least."""


def times_of(batch: int) -> int:
    """How often so many requests at once are measured."""
    return max(_TIMES, _LEAST // batch)


def prompt_of(number: int) -> str:
    """All as long as each other."""
    return f"{PROMPT}{number:05d}"
