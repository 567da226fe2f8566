"""The name of a request, the same in the answer's headers, the log and the tunnel."""

import re
import secrets
from collections.abc import Mapping

_SANE = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:/=+@-]{0,127}\Z")


def request_id(fields: Mapping[bytes, bytes]) -> str:
    """The client's own ``x-request-id`` when it is 1 to 128 harmless characters, else a new one."""
    theirs = fields.get(b"x-request-id")
    if theirs is not None and _SANE.match(theirs):
        return theirs.decode("ascii")
    return new_request_id()


def new_request_id() -> str:
    return "req_" + secrets.token_hex(12)
