"""What a request for pictures or videos says of how much work it is (:mod:`shared.protocol.work`). Pure."""

from collections.abc import Mapping
from typing import Any

import orjson

from gateway.domain.request import RequestBody
from shared.process.frozen import frozen
from shared.protocol.routes import ANY_ROUTE, Route
from shared.protocol.work import WORK_INPUTS, WorkScale, positive, units_of_nodes

JSON_BYTES = 64 * 1024
"""A longer body is not read for this, as that would stop the event loop for too long. It counts as one that
says nothing."""

WORKING = frozenset((Route.IMAGES.value, Route.VIDEOS.value, Route.WORKFLOWS.value, ANY_ROUTE))
"""Routes whose requests may be for pictures or videos."""

PROMPT_PATHS = frozenset(("/prompt", "/api/prompt"))
"""Where ComfyUI's own clients send workflows."""

NUMBERS_SEARCHED = 1024
_NUMBER_CHARS = 12


@frozen
class RequestedWork:
    """What a request says of how much work it is: numbers among its inputs, by name, or, where it brings its
    workflow, the units of that."""

    inputs: Mapping[str, float]
    units: float | None = None

    def units_by(self, scale: WorkScale | None) -> float | None:
        """How much work it is at a model with this scale; None where that is not known."""
        if self.units is not None or scale is None:
            return self.units
        return scale.units_of(self.inputs)


_SAYS_NOTHING = RequestedWork({})


def asked_work(route: str, path: str, body: RequestBody) -> RequestedWork | None:
    """What a request of one of :data:`WORKING` says. None for one that is for neither pictures nor
    videos."""
    if route == ANY_ROUTE:
        if path.partition("?")[0] not in PROMPT_PATHS:
            return None
        return _brought(_read(body).get("prompt"))
    said = _read(body)
    if route != Route.WORKFLOWS:
        return RequestedWork(_numbers(said))
    if (brought := said.get("workflow")) is not None:
        return _brought(brought)
    inputs = said.get("inputs")
    return RequestedWork(_numbers(inputs)) if isinstance(inputs, dict) else _SAYS_NOTHING


def _read(body: RequestBody) -> Mapping[str, Any]:
    """The members of a short JSON body; none of any other."""
    if body.rest is not None or not 0 < body.held_bytes <= JSON_BYTES:
        return {}
    try:
        said = orjson.loads(body.prefix)
    except orjson.JSONDecodeError:
        return {}
    return said if isinstance(said, dict) else {}


def _brought(nodes: Any) -> RequestedWork:
    """By a workflow that the request brings with it."""
    units = units_of_nodes(nodes.values()) if isinstance(nodes, dict) else None
    return RequestedWork({}, units) if units is not None else _SAYS_NOTHING


def _numbers(members: Mapping[str, Any]) -> dict[str, float]:
    """The numbers above 0 among ``members``, and the pixels of OpenAI's ``size``. SDKs and forms write some
    numbers as texts."""
    found: dict[str, float] = {}
    for name in list(members)[:NUMBERS_SEARCHED]:
        value = members[name]
        if isinstance(value, str):
            value = _number_in(name, value)
        if (number := positive(value)) is not None and len(found) < WORK_INPUTS:
            found[name] = number
    return found


def _number_in(name: str, text: str) -> float | None:
    if len(text) > _NUMBER_CHARS:
        return None
    if name == "size":
        width, _, height = text.partition("x")
        return float(int(width) * int(height)) if width.isdecimal() and height.isdecimal() else None
    try:
        return float(text)
    except ValueError:
        return None
