"""Webhooks are refused at submission where nothing may be sent."""

import socket
from collections.abc import Sequence
from ipaddress import ip_network

import pytest
from aiohappyeyeballs import AddrInfoType

from gateway.domain.errors import BadRequest
from gateway.domain.webhook_addresses import WebhookRefused, WebhookRules
from gateway.jobs.webhooks import guard as module
from gateway.jobs.webhooks.guard import SystemResolver, WebhookGuard
from tests.gateway.jobs.webhooks.receiver import Names

ANY = WebhookRules()


async def test_a_receiver_on_the_internet_is_accepted() -> None:
    guard = WebhookGuard(ANY, Names(a_example=[["8.8.8.8", "2606:4700::1"]]))
    await guard.check("https://a.example/hook?x=1")


@pytest.mark.parametrize(
    "addresses", [["127.0.0.1"], ["8.8.8.8", "10.0.0.7"], ["2606:4700::1", "::1"], ["169.254.169.254"], []]
)
async def test_one_address_that_is_not_public_is_enough_to_refuse_and_is_not_told(
    addresses: list[str],
) -> None:
    guard = WebhookGuard(ANY, Names(a_example=[addresses]))
    with pytest.raises(BadRequest) as raised:
        await guard.check("https://a.example/")
    assert (raised.value.code, raised.value.param, raised.value.status) == ("webhook_refused", "webhook", 400)
    assert not any(each in str(raised.value) for each in addresses)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/",
        "http://127.1/",
        "http://2130706433/",
        "http://0x7f.0.0.1/",
        "http://0177.0.0.1/",
        "http://[::1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://[::ffff:7f00:1]/",
        "http://[64:ff9b::7f00:1]/",
        "http://169.254.169.254/latest/meta-data/",
        "http://localhost/",
        "http://0/",
    ],
)
async def test_every_way_to_write_an_own_address_is_seen_by_what_the_system_makes_of_it(url: str) -> None:
    with pytest.raises(BadRequest):
        await WebhookGuard(ANY).check(url)


async def test_a_host_that_does_not_exist_is_refused_and_one_whose_name_server_is_silent_is_not() -> None:
    async def silent(_host: str, _port: int) -> Sequence[AddrInfoType]:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    with pytest.raises(BadRequest, match="its host has no address"):
        await WebhookGuard(ANY, Names()).check("https://nowhere.example/")
    with pytest.raises(BadRequest, match="its host has no address"):
        await WebhookGuard(ANY).check(f"https://{'a' * 64}.example/")
    await WebhookGuard(ANY, silent).check("https://a.example/")


async def test_a_bad_url_is_refused_before_anybody_is_asked_for_its_host() -> None:
    names = Names()
    with pytest.raises(BadRequest, match="no user and no password"):
        await WebhookGuard(ANY, names).check("https://u:p@a.example/")
    assert names.asked == []


async def test_the_operator_allows_networks_and_its_own_webhook() -> None:
    names = Names(a_example=[["10.1.2.3"]], b_example=[["10.2.2.3"]])
    guard = WebhookGuard(WebhookRules((ip_network("10.1.0.0/16"),), own="http://b.example/own"), names)
    await guard.check("https://a.example/")
    await guard.check("http://b.example/own")
    with pytest.raises(BadRequest, match=r"not public \(private\)"):
        await guard.check("http://b.example/other")


async def test_a_slow_lookup_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Sequence[AddrInfoType]:
        raise TimeoutError

    monkeypatch.setattr(module, "_look_up", fail)
    with pytest.raises(socket.gaierror) as raised:
        await SystemResolver()("a.example", 443)
    assert raised.value.errno == socket.EAI_AGAIN


async def test_the_address_that_is_connected_to_is_judged_again() -> None:
    guard = WebhookGuard(ANY, Names())
    guard.check_address("8.8.8.8", "https://a.example/")
    with pytest.raises(WebhookRefused):
        guard.check_address("127.0.0.1", "https://a.example/")
