"""Agents stay while the database cannot be read, and what was changed meanwhile counts afterwards."""

import time
from pathlib import Path

from gateway.auth.agents import AgentDirectory
from gateway.storage.errors import StateBusy
from shared.protocol.errors import ErrorCode, TunnelClosed
from tests.gateway.fleet.agent_house import Host, eventually, running_gateway


class BrokenDirectory(AgentDirectory):
    """One whose database cannot be read at times."""

    broken = False
    asked = 0

    def changed(self) -> bool:
        self.asked += 1
        if self.broken:
            raise StateBusy("disk I/O error")
        return super().changed()


async def test_a_revocation_is_seen_once_the_database_can_be_read_again(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        directory = BrokenDirectory(gateway.store)
        gateway.agents._directory = directory
        tunnel, _ = await Host(gateway).dial()
        directory.broken = True
        gateway.store.agents.revoke("gpu-1", "", time.time())
        asked = directory.asked
        await eventually(lambda: directory.asked > asked + 2)
        assert tunnel.open
        directory.broken = False
        error = await tunnel.wait_closed()
        assert isinstance(error, TunnelClosed)
        assert error.code is ErrorCode.REVOKED
