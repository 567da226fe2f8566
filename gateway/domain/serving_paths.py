"""Paths of TensorFlow Serving's and TorchServe's APIs that name a model. Pure.

TensorFlow Serving has ``/v1/models/{model}[/versions/{version}|/labels/{label}]:predict`` (also
``:classify``, ``:regress`` and, of KServe's first protocol, ``:explain``), the status of a version at the
same path without a verb, and ``…/metadata``. The status of a model is ``/v1/models/{model}``, which is
OpenAI's path of a model, too: it is not read here. TorchServe has ``/predictions/{model}[/{version}]`` and
``/explanations/…``.

The path that an engine gets is made anew from what was read. In TensorFlow Serving's paths a slash in a
model's name may be escaped or not; in TorchServe's it is escaped.
"""

import re
from urllib.parse import quote, unquote_to_bytes

from shared.process.frozen import frozen

SERVED_MODELS = "/v1/models/"
PREDICTIONS = "/predictions/"
EXPLANATIONS = "/explanations/"

_CHARACTERS = r"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
_SERVED = re.compile(
    rf"{SERVED_MODELS}(?P<model>(?:{_CHARACTERS}|/)+?)"
    r"(?P<version>/versions/[0-9]{1,19}|/labels/[A-Za-z0-9._-]{1,64})?"
    r"(?:(?::|%3[Aa])(?P<verb>predict|classify|regress|explain)|(?P<metadata>/metadata))?\Z"
)
_PREDICTED = re.compile(
    rf"(?P<base>{PREDICTIONS}|{EXPLANATIONS})(?P<model>{_CHARACTERS}+)"
    r"(?:/(?P<version>[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}))?\Z"
)


@frozen
class ServingPath:
    """A path that was read: what stands before the model's name and behind it, as the engine gets it."""

    base: str
    model: bytes
    rest: str
    methods: tuple[str, ...]

    def of(self, model: str) -> str:
        """The same path of ``model``."""
        return f"{self.base}{quote(model, safe='')}{self.rest}"


def read_served_path(raw_path: str) -> ServingPath | None:
    """What ``raw_path`` asks TensorFlow Serving for; None for nothing that there is, and for the bare path of
    a model."""
    found = _SERVED.match(raw_path)
    if found is None:
        return None
    verb = f":{found['verb']}" if found["verb"] else found["metadata"] or ""
    rest = f"{found['version'] or ''}{verb}"
    model = _model(found["model"])
    if not rest or model is None:
        return None
    return ServingPath(SERVED_MODELS, model, rest, ("POST",) if found["verb"] else ("GET",))


def read_predictions_path(raw_path: str) -> ServingPath | None:
    """What ``raw_path`` asks TorchServe for; None for nothing that there is."""
    found = _PREDICTED.match(raw_path)
    model = None if found is None else _model(found["model"])
    if found is None or model is None:
        return None
    rest = f"/{found['version']}" if found["version"] else ""
    return ServingPath(found["base"], model, rest, ("GET", "POST", "PUT"))


def with_served_model(path: str, model: str) -> str:
    """``path``, an engine's path of one of these kinds with its query, with ``model`` in place of its own."""
    bare, mark, query = path.partition("?")
    found = read_served_path(bare) or read_predictions_path(bare)
    return path if found is None else found.of(model) + mark + query


def _model(segment: str) -> bytes | None:
    name = unquote_to_bytes(segment)
    return None if any(part in (b"", b".", b"..") for part in name.split(b"/")) else name
