"""Quotes in messages where the whole would be too long, cut between words or members. Pure."""

from typing import Any

import orjson


def shortened(text: str, most: int = 300) -> str:
    """``text`` in one line; one of more than ``most`` characters ends after a word, with how long it is."""
    line = " ".join(text.split())
    if len(line) <= most:
        return line
    head = line[:most]
    blank = head.rfind(" ")
    return f"{head[:blank] if blank > most // 2 else head}… ({len(line)} characters)"


def printable(text: str, keep: str = "") -> str:
    """``text`` fit for a terminal: what could steer one, or is no text, is ``?``; those to ``keep`` stay."""
    return "".join(each if each.isprintable() or each in keep else "?" for each in text)


def json_excerpt(value: Any, most: int = 80) -> str:
    """``value`` as JSON of about ``most`` characters: of a longer object or list the members that fit
    whole, and an ellipsis for the others; of a longer text its beginning."""
    try:
        whole = orjson.dumps(value).decode()
    except orjson.JSONEncodeError:  # nested deeper than it can be written
        return "[…]" if isinstance(value, list) else "{…}"
    if len(whole) <= most:
        return whole
    if isinstance(value, dict):
        return _members(
            [f"{orjson.dumps(k).decode()}:{json_excerpt(v, most // 2)}" for k, v in value.items()], most
        )
    if isinstance(value, list):
        return _members([json_excerpt(each, most // 2) for each in value], most, "[]")
    return f'{orjson.dumps(str(value)[: max(1, most - 3)]).decode()[:-1]}…"'


def _members(members: list[str], most: int, brackets: str = "{}") -> str:
    kept: list[str] = []
    for member in members:
        if kept and sum(map(len, kept)) + len(kept) + len(member) > most:
            break
        kept.append(member)
    more = [] if len(kept) == len(members) else ["…"]
    return f"{brackets[0]}{','.join(kept + more)}{brackets[1]}"
