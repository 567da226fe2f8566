"""What strings from command lines, variables and files may hold. Pure, and imports nothing."""

NO_TEXT = "what was given holds bytes that are no text (UTF-8)"


def is_text(value: str) -> bool:
    """False for what came from bytes that are no UTF-8, and has surrogates now. Only paths may have these."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def as_field_value(text: str) -> str:
    """``text`` as a header field may have it: without the blanks and line ends around it, which files and
    stores of secrets add. Raises ValueError, without the text, where it holds more of these."""
    value = text.strip()
    if not value.isprintable():
        raise ValueError("it holds line ends or other characters that cannot be printed")
    return value
