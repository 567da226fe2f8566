"""Faults of the gateway's state directory, and what must hold of it during and after them."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable

import aiohttp

from gateway.domain.state_dir import DATABASE_NAME
from gateway.storage import Store
from tests.chaos.house import ChaosHouse

DELETION_ERRORS = ("gateway logged state_deleted", "gateway logged state_restored_from_backup")
"""What the gateway's log says of each deletion, at level error, and rightly so."""
_END_S = 60.0
"""For a process that refuses, on a busy machine."""
_NOTICE_S = 30.0


async def start_second_gateway(house: ChaosHouse) -> list[str]:
    """A second gateway is started on the state of the one that runs. What did not hold, in words."""
    first, second = house.gateway, house.start_second_gateway()
    code = await asyncio.to_thread(second.ended, _END_S)
    if code is None:
        await asyncio.to_thread(second.stop)
    said, wrong = second.log.read_text("utf-8", "replace"), []
    if code != 1:
        wrong.append(f"a second gateway on the same state ended with {code} and not with 1: {said[-300:]}")
    if f"a gateway runs on {house.state} already (process {first.pid} on " not in said:
        wrong.append(f"a second gateway on the same state does not name the first: {said[-300:]}")
    if not await house.serving():
        wrong.append("the gateway does not serve after a second one was refused")
    return wrong


async def delete_database(
    house: ChaosHouse, lasts_s: float, restart: Callable[[], Awaitable[None]]
) -> list[str]:
    """The database is deleted, and ``lasts_s`` later the gateway started again. What did not hold."""
    number = house.starts["gateway"]
    keys = {"a client": house.key, "a command before": await asyncio.to_thread(_new_key, house, number)}
    for name in ("", "-wal", "-shm"):
        (house.state / f"{DATABASE_NAME}{name}").unlink(missing_ok=True)
    log = house.gateway.log

    async def noticed() -> bool:
        return "state_deleted" in log.read_text("utf-8", "replace")

    await house.until("the deleted database is noticed", noticed, _NOTICE_S)
    wrong = await _refused(house)
    keys["the admin API meanwhile"] = await _new_key_over_http(house, number)
    if (house.state / DATABASE_NAME).exists():
        wrong.append("a database was made anew where one was deleted")
    await asyncio.sleep(lasts_s)
    await restart()
    for whose, key in keys.items():
        status = (await house.get("/v1/models", key))[0]
        if status != 200:
            wrong.append(f"the key of {whose} gets {status} after the database was deleted")
    return wrong


async def _refused(house: ChaosHouse) -> list[str]:
    """A command on the state that is gone."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "from shared.process.cli import main; main()"),
        *("key", "create", "--name", "refused", "--state", str(house.state)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, said = await process.communicate()
    if process.returncode == 1 and not out and b"was deleted while a gateway runs on it" in said:
        return []
    return [f"a command on a deleted database ended with {process.returncode}: {said[-300:]!r}"]


def _new_key(house: ChaosHouse, number: int) -> str:
    with Store.open(house.state) as store:
        return store.keys.create(f"before-{number}", "tests", time.time())


async def _new_key_over_http(house: ChaosHouse, number: int) -> str:
    """Empty if it is not made."""
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(_END_S)) as session,
        session.post(
            f"{house.url}/admin/keys",
            json={"name": f"meanwhile-{number}"},
            headers={"authorization": f"Bearer {house.admin_key}"},
            ssl=house.trust(),
        ) as response,
    ):
        return str((await response.json()).get("key", ""))
