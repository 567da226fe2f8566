"""Names of models: which can be offered, and the ids that their deployments have. Pure."""

from hashlib import sha256
from typing import Any

from shared.protocol import limits


def is_nameable(model: Any) -> bool:
    """Whether clients can ask for a model of this name, and the protocol can carry it."""
    return not why_not_nameable(model)


def why_not_nameable(name: Any) -> str:
    """What is wrong with a model's name; empty if nothing is."""
    if not isinstance(name, str) or not name:
        return "it has no name"
    if len(name) > limits.MODEL_NAME_CHARS:
        return f"its name has {len(name)} characters, and {limits.MODEL_NAME_CHARS} are allowed"
    if " " in name or not name.isprintable():
        return "its name holds blanks, or characters that cannot be printed"
    return ""


def deployment_id(engine: str, model: str) -> str:
    """The deployment's id in the session: ``engine/model``, cut and with a digest where it is too long."""
    whole = f"{engine}/{model}"
    if len(whole) <= limits.MODEL_NAME_CHARS:
        return whole
    digest = sha256(model.encode()).hexdigest()[:24]
    return f"{whole[: limits.MODEL_NAME_CHARS - len(digest) - 1]}~{digest}"
