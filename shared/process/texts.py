"""Strings from command lines and variables that are no text. Pure, and imports nothing."""

NO_TEXT = "what was given holds bytes that are no text (UTF-8)"


def is_text(value: str) -> bool:
    """False for what came from bytes that are no UTF-8, and has surrogates now. Only paths may have these."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
