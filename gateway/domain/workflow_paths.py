"""The path of a stored workflow: ``/v1/workflows/{model}``. Pure.

The path that an engine gets is made anew from the name that was read.
"""

import re
from urllib.parse import quote, unquote_to_bytes

WORKFLOWS = "/v1/workflows/"

_SEGMENT = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})+\Z")


def read_workflow_path(raw_path: str) -> bytes | None:
    """The name in ``raw_path``; None for a path that is none of a workflow."""
    segment = raw_path.removeprefix(WORKFLOWS)
    if not raw_path.startswith(WORKFLOWS) or not _SEGMENT.match(segment):
        return None
    name = unquote_to_bytes(segment)
    return None if any(part in (b"", b".", b"..") for part in name.split(b"/")) else name


def workflow_path(model: str) -> str:
    """The path of the workflow ``model``, as an engine gets it."""
    return WORKFLOWS + quote(model, safe="")
