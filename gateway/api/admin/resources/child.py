"""Runs an operation that takes long in a process of its own, on the state directory, as a command does.

In a thread it would keep the interpreter's lock from the event loop for milliseconds at a time, at every
answer that the loop sends.
"""

import asyncio
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

import orjson

import gateway
from gateway.api.admin.resources.resource import LONGEST_S, AdminRequest, Json
from gateway.domain.store_address import StoreAddress
from gateway.storage import Store
from gateway.storage.errors import BadValue, StateError, StateUnwritable
from shared.process.startup import environment_of_child

CHILD = (sys.executable, "-P", "-m", "gateway.api.admin.resources.child")
"""``-P``: a package of this name in the current directory is not taken."""

NICENESS = 10
"""Streams come first."""


async def run_in_child(
    state_dir: Path, operation: str, body: Json, address: StoreAddress | None = None
) -> Json:
    """The operation's answer. The process ends with the task that waits for it.

    Raises StateError, BadValue, and what starting a process raises as StateUnwritable.
    """
    store = None if address is None else asdict(address)
    task = orjson.dumps(
        {"state": str(state_dir), "store": store, "operation": operation, "body": body}, default=str
    )
    try:
        child = await asyncio.create_subprocess_exec(
            *CHILD,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=environment_of_child(gateway),
        )
    except OSError as error:
        raise StateUnwritable(f"no process can be started for this: {error.strerror}") from error
    try:
        async with asyncio.timeout(LONGEST_S):
            output, _ = await child.communicate(task)
    except TimeoutError:
        raise StateUnwritable(f"this took longer than {LONGEST_S:g} s: do it on the gateway's host") from None
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    return _answer(output, child.returncode)


def _address(url: str, cluster_key: str | None, password_file: str | None, **_: object) -> StoreAddress:
    key, password = (None if name is None else Path(name) for name in (cluster_key, password_file))
    return StoreAddress(url, key, password)


def _answer(output: bytes, code: int | None) -> Json:
    """Raises StateError and BadValue."""
    if code != 0:
        raise StateUnwritable(f"the process that does this ended with {code}; the gateway's log may say why")
    found: Json = orjson.loads(output)
    if "wrong" in found:
        raise BadValue(found["wrong"])
    if "failed" in found:
        raise StateUnwritable(found["failed"])
    done: Json = found["done"]
    return done


def main() -> None:
    """Run one operation that standard input names, and write its answer to standard output."""
    from gateway.api.admin.resources.table import run_operation

    if hasattr(os, "nice"):
        os.nice(NICENESS)
    task = orjson.loads(sys.stdin.buffer.read())
    found: Json
    try:
        address = None if task["store"] is None else _address(**task["store"])
        with Store.open(Path(task["state"]), address=address) as store:
            request = AdminRequest(time.time(), lambda model, version: False, (), task["body"])
            found = {"done": run_operation(store, task["operation"], request)}
    except BadValue as error:
        found = {"wrong": str(error)}
    except StateError as error:
        found = {"failed": str(error)}
    sys.stdout.buffer.write(orjson.dumps(found))


if __name__ == "__main__":
    main()
