"""Where a link dials for its process."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from shared.link import processes
from shared.link.dialer import Dial
from shared.link.membership import Membership
from shared.link.processes import GatewayProcesses, ProcessLink
from shared.protocol.errors import DialFailed
from shared.protocol.peers import GatewayPeer
from tests.support.identities import TOKEN

OWN, GATEWAY = "ws://own", None


class Dialled:
    """Where was dialled, in order. Nothing answers; at the gateway's address that is never found out."""

    def __init__(self, directory: Path, url: str | None = OWN) -> None:
        self.addresses: list[str | None] = []
        membership = Membership.open(directory, join=TOKEN.encode(), name="gpu-1", default_name="x")
        self.owner = GatewayProcesses(membership, lambda: (lambda: None, lambda: None), self._dial_at)  # type: ignore[arg-type, return-value]
        self.link = ProcessLink(self.owner, GatewayPeer("b", 1, url))

    def _dial_at(self, process: str | None, address: str | None) -> Dial:
        async def dial(*arguments: Any) -> Any:
            self.addresses.append(address or process)
            if address is None and process is None:
                await asyncio.get_running_loop().create_future()
            raise DialFailed("nobody there")

        return dial

    async def attempt(self) -> None:
        with pytest.raises(DialFailed):
            await self.link._dial(None, None, None)  # type: ignore[arg-type]


async def test_where_processes_are_reached_at_their_own_addresses_a_gateway_that_hangs_costs_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "DETOUR_S", 0.01)
    dialled = Dialled(tmp_path)
    dialled.owner.own_addresses_lead = True
    for _ in range(8):
        await dialled.attempt()
    assert dialled.addresses == [OWN, OWN, OWN, GATEWAY] * 2


@pytest.mark.parametrize("url", [OWN, None])
async def test_elsewhere_the_gateways_address_has_all_the_time_it_wants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str | None
) -> None:
    monkeypatch.setattr(processes, "DETOUR_S", 0.01)
    dialled = Dialled(tmp_path, url)
    await dialled.attempt()
    second = asyncio.ensure_future(dialled.link._dial(None, None, None))  # type: ignore[arg-type]
    await asyncio.sleep(0.05)
    assert not second.done()
    second.cancel()
    assert dialled.addresses == [url or "b", GATEWAY]


def test_a_process_that_was_started_anew_is_dialled_at_once_where_another_names_it(tmp_path: Path) -> None:
    dialled = Dialled(tmp_path)
    owner, link = dialled.owner, dialled.link
    hurried: list[int] = []
    link.dialer.hurry = lambda: hurried.append(link.newest)  # type: ignore[method-assign]
    for incarnation, up in ((1, False), (2, False), (2, False), (3, True), (3, False), (4, False)):
        link.up = up
        owner._follow(link, {"b": GatewayPeer("b", incarnation, OWN)})
    assert hurried == [2, 4]
