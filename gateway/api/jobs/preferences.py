"""What a client prefers (RFC 7240). Pure."""

import re
from collections.abc import Mapping

from gateway.api.openai.handlers import PREFER
from shared.process.frozen import frozen

MOST_WAIT_S = 600.0
"""Longest wait for a job in one request."""

WEBHOOK = b"x-trunkline-webhook"
"""Who is told of the end of a job whose body is its engine's."""

_WAIT = re.compile(r"[0-9]{1,9}\Z")


@frozen
class Preferences:
    """Of one request. What cannot be read is no preference (RFC 7240, section 2)."""

    respond_async: bool = False
    wait_s: float | None = None


def preferences_of(fields: Mapping[bytes, bytes]) -> Preferences:
    """The first of two equal ones counts."""
    given = fields.get(PREFER)
    if given is None:
        return Preferences()
    respond_async, wait_s = False, None
    for each in given.decode("latin-1").lower().split(","):
        name, _, value = (part.strip() for part in each.partition(";")[0].partition("="))
        if name == "respond-async":
            respond_async = True
        elif name == "wait" and wait_s is None and _WAIT.match(value := value.strip('"')):
            wait_s = min(float(value), MOST_WAIT_S)
    return Preferences(respond_async, wait_s)


def webhook_of(fields: Mapping[bytes, bytes]) -> str | None:
    """The URL that is to be told of the job's end, unchecked; None: the request says nothing of it."""
    given = fields.get(WEBHOOK)
    return None if given is None else given.decode("latin-1").strip()
