"""What goes on beside the door."""

import asyncio

import pytest

from gateway.auth import clients as module
from gateway.auth.clients import Authenticator, Clients
from gateway.domain.oidc import OidcTable
from gateway.storage import Store


@pytest.fixture
def clients(store: Store) -> Clients:
    return Clients([], store, lambda: 0.0, lambda: 500.0)


async def test_without_issuers_the_door_is_the_ring_itself(store: Store, clients: Clients) -> None:
    assert clients.credentials is clients.ring
    table = OidcTable(issuer="https://id.example", audience=["a"])
    assert isinstance(Clients([table], store, lambda: 0.0).credentials, Authenticator)


async def test_when_keys_were_used_is_written_down(store: Store, clients: Clients) -> None:
    text = store.keys.create("laptop", "acme", 1.0)
    await clients.write_use()
    assert store.keys.get("laptop").last_used_s is None
    await clients.credentials.identify(text)
    await clients.write_use()
    assert store.keys.get("laptop").last_used_s == 500.0


async def test_the_last_use_is_written_at_the_end_too(
    store: Store, clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "USED_TICK_S", 3600.0)
    text = store.keys.create("laptop", "acme", 1.0)
    running = asyncio.get_running_loop().create_task(clients.run())
    await asyncio.sleep(0)
    await clients.credentials.identify(text)
    running.cancel()
    await asyncio.wait([running])
    assert store.keys.get("laptop").last_used_s == 500.0


async def test_what_could_not_be_written_is_written_the_next_time(store: Store, clients: Clients) -> None:
    await clients.credentials.identify(store.keys.create("laptop", "acme", 1.0))
    used_s = clients.ring.take_used()
    clients.ring.put_back_used(dict.fromkeys(used_s, 400.0))
    await clients.write_use()
    assert store.keys.get("laptop").last_used_s == 400.0
