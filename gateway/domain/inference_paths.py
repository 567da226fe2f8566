"""Paths of KServe's Open Inference Protocol that name a model: ``/v2/models/{model}…``. Pure.

The path that an engine gets is made anew from what was read, so that nothing a client writes can turn one
path into another. A model's name may hold slashes, escaped or as they are: clients of Triton leave them.
"""

import re
from urllib.parse import quote, unquote_to_bytes

from shared.process.frozen import frozen

INFERENCE_MODELS = "/v2/models/"

_GET, _POST = ("GET",), ("POST",)
_ACTIONS = {
    "infer": _POST,
    "generate": _POST,
    "generate_stream": _POST,
    "config": _GET,
    "stats": _GET,
    "ready": _GET,
}
"""What may follow a model and its version, and the methods for that. ``generate``, ``config`` and ``stats``
are Triton's."""

_VERSION = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}\Z")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


@frozen
class InferencePath:
    """A path that was read. ``action`` empty: the model's metadata."""

    model: bytes
    version: str = ""
    action: str = ""

    @property
    def methods(self) -> tuple[str, ...]:
        """Those it takes."""
        return _ACTIONS.get(self.action, _GET)


def read_inference_path(raw_path: str) -> InferencePath | None:
    """What ``raw_path`` asks for; None for nothing that there is."""
    if not raw_path.startswith(INFERENCE_MODELS) or not raw_path.isascii() or _BAD_ESCAPE.search(raw_path):
        return None
    segments = raw_path.removeprefix(INFERENCE_MODELS).split("/")
    action = segments.pop() if len(segments) > 1 and segments[-1] in _ACTIONS else ""
    version = ""
    if len(segments) > 2 and segments[-2] == "versions":
        version = segments.pop()
        segments.pop()
        if not _VERSION.match(version):
            return None
    model = unquote_to_bytes("/".join(segments))
    if any(segment in (b"", b".", b"..") for segment in model.split(b"/")):
        return None
    return InferencePath(model, version, action)


def inference_path(model: str, version: str = "", action: str = "") -> str:
    """The path of ``action`` of ``model``, as an engine gets it."""
    of_version = f"/versions/{version}" if version else ""
    return f"{INFERENCE_MODELS}{quote(model, safe='')}{of_version}{'/' if action else ''}{action}"


def with_model(path: str, model: str) -> str:
    """``path``, an engine's path for inference with its query, with ``model`` in place of its own."""
    bare, mark, query = path.partition("?")
    found = read_inference_path(bare)
    return path if found is None else inference_path(model, found.version, found.action) + mark + query
