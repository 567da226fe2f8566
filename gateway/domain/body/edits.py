"""Changes to a JSON body that the client wrote, without writing the rest of it anew (SURFACE, HTTP). Pure.

Numbers, key order, blanks and duplicate keys of the client's body stay byte for byte as they were.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from gateway.domain.body.places import Place, top_values, value_end
from gateway.domain.errors import BadRequest
from gateway.domain.request import Edit

OPTIONS = "stream_options"
MOST_TOKENS = 4096
"""In the value of ``stream_options``, which has some four members where it is meant."""

MOST_REPEATED = 16
"""So often a body may name ``stream_options`` or ``model``, of which engines read one."""

BEGINNING_BYTES = 64 * 1024
"""Of a body are looked at for an option in front."""

_ASK = b'"stream_options":{"include_usage":true}'


def option_places(body: bytes) -> list[Place]:
    """Start and end of every value of the member ``stream_options`` at the top of the object ``body``, which
    has one. Raises BadRequest for more of it than anybody means."""
    places: list[Place] = []
    for start in named(body, OPTIONS):
        end = value_end(body, start, MOST_TOKENS)
        if end is None:
            raise BadRequest(f"{OPTIONS!r} has more than {MOST_TOKENS} values.", param=OPTIONS)
        places.append((start, end))
    return places


def named(body: bytes, member: str) -> list[int]:
    """Where the values of a member that the object has at its top begin. Raises BadRequest for too many."""
    starts = top_values(body, member, known=True)
    if len(starts) > MOST_REPEATED:
        raise BadRequest(f"The body names {member!r} more than {MOST_REPEATED} times.", param=member)
    return starts


def usage_edits(
    start: int, *, empty: bool, options: Mapping[str, Any] | None, places: Sequence[Place]
) -> list[Edit]:
    """What makes ``stream_options.include_usage`` true in an object and leaves all else as it is.

    ``start`` is behind the object's opening brace, ``empty`` says whether it has no member, ``options`` is
    the value of its ``stream_options`` (None for null) and ``places`` where that stands; without any the
    option is put in front. Raises BadRequest.
    """
    if not places:
        return [(start, start, _ASK + (b"" if empty else b","))]
    try:
        asked = orjson.dumps({**(options or {}), "include_usage": True})
    except orjson.JSONEncodeError:
        raise too_deep(OPTIONS) from None
    return [(begin, end, asked) for begin, end in places]


def too_deep(param: str) -> BadRequest:
    """JSON that is nested deeper than it can be written again."""
    message = f"'{param}' is nested too deeply: JSON may have some 250 levels."
    return BadRequest(message, param=param, code="invalid_json")


def option_in_front(pieces: Sequence[bytes]) -> Place | None:
    """The place of the option that :func:`usage_edits` put in front of a body's members, with the comma
    behind it; None if it did not."""
    begins = b""
    for piece in pieces:
        begins += piece
        if len(begins) > BEGINNING_BYTES:
            break
    start = begins.find(b"{") + 1
    end = start + len(_ASK)
    if not start or not begins.startswith(_ASK, start):
        return None
    return start, end + (begins[end : end + 1] == b",")


def without_usage(body: bytes) -> bytes | None:
    """``body`` without the option that was put in front of it; None if none was."""
    place = option_in_front([body])
    return None if place is None else body[: place[0]] + body[place[1] :]
