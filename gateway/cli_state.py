"""What the commands that work on the state directory share: its option, its errors, durations, labels.

They work on the state directory itself, whether or not a gateway runs on it, and a running one acts on
them at once. Explanations go to stderr, data to stdout; exit 0 done, 1 failed, 2 wrong usage (SURFACE).
"""

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer

from gateway.audit import take_up_acts
from gateway.cli_output import fail, note
from gateway.store import Store, own_state_dir
from gateway.store.errors import BadValue, RecordError, StateError
from shared.errors import JoinTokenInvalid

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_DURATION = re.compile(r"(\d{1,9})([smhdw])")

StateOption = Annotated[
    Path,
    typer.Option(
        "--state",
        envvar="TRUNKLINE_STATE",
        default_factory=own_state_dir,
        show_default="$XDG_STATE_HOME/trunkline or ~/.local/state/trunkline; for root /var/lib/trunkline",
        help="The gateway's state directory.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def duration_s(text: str, option: str = "--expires") -> float:
    """Seconds in ``90s``, ``30m``, ``24h``, ``7d`` or ``2w``. Raises typer.BadParameter."""
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None:
        raise typer.BadParameter(
            f"{text!r} is no duration; write for example 30m, 24h or 7d", param_hint=option
        )
    return float(match[1]) * _UNITS_S[match[2]]


def labels_of(pairs: list[str]) -> dict[str, str]:
    """The labels in ``k=v`` texts. Raises typer.BadParameter."""
    labels: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or name in labels:
            problem = "is given twice" if equals else "is no label; write k=v"
            raise typer.BadParameter(f"{pair!r} {problem}", param_hint="--label")
        labels[name] = value
    return labels


@contextlib.contextmanager
def opened(state: Path, *, create: bool = False) -> Iterator[Store]:
    """The store, with its errors as exit codes: 2 for values it does not take, 1 for the rest."""
    try:
        with Store.open(state, create=create) as store:
            yield store
            _record_acts(store)
    except BadValue as error:
        raise typer.BadParameter(str(error)) from error
    except UnicodeEncodeError as error:
        raise typer.BadParameter("what was given holds bytes that are no text (UTF-8)") from error
    except (StateError, RecordError, JoinTokenInvalid) as error:
        fail(str(error))


def _record_acts(store: Store) -> None:
    """What the command has done is in the state, with a note of it; the note goes into the audit log."""
    try:
        take_up_acts(store)
    except StateError as error:
        note(f"trunkline: this is done; the audit log will have it as soon as it can be written ({error})")


def label_text(labels: Mapping[str, str]) -> str:
    """``k=v`` of each, by name."""
    return " ".join(f"{name}={value}" for name, value in sorted(labels.items()))
