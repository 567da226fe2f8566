"""What may be stored as a name, label, pattern or count. Everything else is ``BadValue``."""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence

from gateway.domain.residency import LABEL_CHARS, LABEL_NAME, are_label_values
from gateway.storage.errors import BadValue
from shared.protocol.limits import MODEL_NAME_CHARS, REASON_CHARS

NAME_CHARS = 64
"""Longest name of a client key or tenant: fits a table's column and a metric's label."""

MODELS = 64
"""Model patterns of one token: they are compared with every deployment an agent reports."""

LABELS = 32

USES = 100_000
"""Most agents one token lets in: the largest fleet, ten times over."""

TOKEN_LIFE_S = 366 * 86_400.0
"""Longest life of a join token; one that never expires is a password on a shelf."""

OVERLAP_S = 366 * 86_400.0
"""Longest time that two keys of a gateway count."""

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._@+ -]{0,62}[A-Za-z0-9._@+-])?")


def check_record_name(what: str, name: str) -> None:
    """A client key's or tenant's name."""
    if _NAME.fullmatch(name) is None:
        raise BadValue(
            f"{what} {name!r} cannot be used: 1 to {NAME_CHARS} of letters, digits, spaces and ._@+- "
            "that begin with a letter or digit"
        )


def is_model_name(name: str) -> bool:
    """Whether a model, or a pattern of models' names, may be called so."""
    return 0 < len(name) <= MODEL_NAME_CHARS and name.isprintable() and name == name.strip()


def check_models(patterns: Sequence[str]) -> None:
    """Shell patterns of model names."""
    if not 0 < len(patterns) <= MODELS:
        raise BadValue(f"{len(patterns)} model patterns; 1 to {MODELS} are allowed ('*' for every model)")
    for pattern in patterns:
        if not is_model_name(pattern):
            raise BadValue(f"model pattern {pattern!r} cannot be used: no model has such a name")


def check_labels(labels: Mapping[str, str]) -> None:
    """Labels that a token gives to the agents that join with it."""
    if len(labels) > LABELS:
        raise BadValue(f"{len(labels)} labels; {LABELS} are allowed")
    for name, value in labels.items():
        if LABEL_NAME.fullmatch(name) is None or not are_label_values(value):
            raise BadValue(
                f"label {name}={value} cannot be used: name and value are at most {LABEL_CHARS} of letters, "
                "digits and ._/- that begin and end with a letter or digit; several values differ and are "
                "separated by commas"
            )


def check_reason(reason: str) -> None:
    """Why an agent was revoked: what it is told on the wire, or nothing."""
    if len(reason) > REASON_CHARS or not reason.isprintable():
        raise BadValue(f"a reason is one line of at most {REASON_CHARS} characters")


def check_uses(uses: int) -> None:
    """How many agents a token lets in."""
    if not 1 <= uses <= USES:
        raise BadValue(f"{uses} uses; 1 to {USES} are allowed")


@contextlib.contextmanager
def refusing(kind: type[ValueError]) -> Iterator[None]:
    """What the domain finds wrong, as an error of this ``kind``, is refused as BadValue."""
    try:
        yield
    except kind as error:
        raise BadValue(str(error)) from error


def check_seconds(what: str, seconds: float, most_s: float, least_s: int = 1) -> None:
    """How long something lasts; ``what`` is the refusal's beginning."""
    if not least_s <= seconds <= most_s:
        least = "1 second" if least_s == 1 else f"{least_s} seconds"
        raise BadValue(f"{what} {least} to {most_s / 86_400:g} days, not {seconds:g} s")
