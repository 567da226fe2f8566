"""Which server has a gateway's store, noted in its state directory: ``store.json``, without the password.

So commands on the directory work on that store, and a gateway that is started there without the address does
not begin anew with files.
"""

import os
import secrets
from pathlib import Path

import orjson

from gateway.domain.state_dir import ADDRESS_NAME
from gateway.domain.store_address import BadStoreAddress, StoreAddress
from gateway.storage.errors import StateCorrupt, StateUnwritable


def note_address(state_dir: Path, address: StoreAddress) -> None:
    """Several workers do so at once. Raises StateUnwritable."""
    path = state_dir / ADDRESS_NAME
    fresh = path.with_name(f".{ADDRESS_NAME}.{secrets.token_hex(8)}")
    noted = {
        "url": address.url_without_password,
        "cluster_key": _absolute(address.cluster_key),
        "password_file": _absolute(address.password_file),
    }
    try:
        try:
            file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(file, "wb") as opened:
                opened.write(orjson.dumps(noted, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
            fresh.replace(path)
        finally:
            fresh.unlink(missing_ok=True)
    except OSError as error:
        raise StateUnwritable.opening(path, error) from error


def noted_address(state_dir: Path) -> StoreAddress | None:
    """Raises StateUnwritable, StateCorrupt."""
    path = state_dir / ADDRESS_NAME
    try:
        noted = orjson.loads(path.read_bytes())
        cluster_key, password_file = (
            None if noted[name] is None else Path(noted[name]) for name in ("cluster_key", "password_file")
        )
        return StoreAddress(noted["url"], cluster_key, password_file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StateUnwritable.opening(path, error) from error
    except (BadStoreAddress, orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise StateCorrupt(
            f"{path} names no store: start the gateway with --store, which writes it"
        ) from error


def _absolute(path: Path | None) -> str | None:
    return None if path is None else str(path.absolute())
