"""The gateway's own OpenAPI 3.1 document, served at ``/openapi.json``.

The document is the file ``openapi.json`` beside this module, and what is made of the pages of the admin API
(:mod:`gateway.api.admin.description`). A test holds it against the routes, the methods, the fields and the
errors of the gateway. It says which paths there are and how they answer, and nothing of this gateway: no
model, no agent, no setting, no version of the program. So it needs no key.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

Json = dict[str, Any]

_SHARED = "x-shared"
"""The member of the file with what several paths have in common; references to it are replaced by it."""


def document(admin: Mapping[str, Json] | None = None) -> Json:
    """The whole document, as JSON values, with the paths of ``admin``."""
    found: Json = orjson.loads(Path(__file__).with_suffix(".json").read_bytes())
    shared = found.pop(_SHARED)
    whole: Json = _resolved(found | {"paths": found["paths"] | dict(admin or {})}, shared)
    return whole


def _resolved(value: Any, shared: Json) -> Any:
    """``value`` with what its references to :data:`_SHARED` name in their place."""
    if isinstance(value, list):
        return [_resolved(each, shared) for each in value]
    if not isinstance(value, dict):
        return value
    _, of_shared, name = str(value.get("$ref", "")).partition(f"#/{_SHARED}/")
    return (
        _resolved(shared[name], shared) if of_shared else {k: _resolved(v, shared) for k, v in value.items()}
    )
