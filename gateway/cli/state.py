"""Opening the state directory for a command, with its errors as exit codes."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import typer

from gateway.domain.state_dir import own_state_dir
from gateway.storage import Store
from gateway.storage.errors import BadValue, RecordError, StateError
from gateway.tools.console import fail, note
from shared.protocol.errors import JoinTokenInvalid


@contextlib.contextmanager
def opened(state: Path | None, *, create: bool = False) -> Iterator[Store]:
    """The store, in the usual place for None, with its errors as exit codes: 2 for values it does not take, 1
    for the rest."""
    try:
        with Store.open(own_state_dir() if state is None else state, create=create) as store:
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
        if store.acts.pending(1):
            from gateway.observability.audit import take_up_acts

            take_up_acts(store)
    except StateError as error:
        note(f"trunkline: this is done; the audit log will have it as soon as it can be written ({error})")
