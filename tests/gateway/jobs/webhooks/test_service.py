"""What clients give as a webhook, and whose secret signs for it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.domain.errors import BadRequest
from gateway.domain.webhook_addresses import WebhookRules
from gateway.domain.webhooks import Delivery, DeliveryState, WebhookEvent
from gateway.jobs.webhooks.guard import WebhookGuard
from gateway.jobs.webhooks.service import WebhookService, read_webhook
from gateway.storage import Store
from tests.gateway.jobs.webhooks.receiver import Names

OWN = "http://10.0.0.1/own"
URL = "https://a.example/hook"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path) as opened:
        yield opened


def service(store: Store, own: str | None = None) -> WebhookService:
    guard = WebhookGuard(WebhookRules(own=own), Names(a_example=[["8.8.8.8"]], b_example=[["10.0.0.2"]]))
    return WebhookService(guard, store.webhook_secrets)


@pytest.mark.parametrize("value", [URL, {"url": URL}])
async def test_a_webhook_is_a_url_or_an_object_with_one(store: Store, value: object) -> None:
    store.webhook_secrets.create("acme", 1.0)
    assert await service(store).accept(value, "acme") == URL


@pytest.mark.parametrize("value", ["", {}, {"url": ""}, {"url": 5}, 5, True, [URL], {"url": URL, "x": 1}])
def test_anything_else_is_none(value: object) -> None:
    with pytest.raises(BadRequest) as raised:
        read_webhook(value)
    assert (raised.value.param, raised.value.code) == ("webhook", "webhook_refused")


async def test_who_says_none_has_the_gateways_own_or_none(store: Store) -> None:
    assert await service(store).accept(None, "acme") is None
    assert await service(store, OWN).accept(None, "acme") == OWN


async def test_a_refused_address_and_a_tenant_without_a_secret_are_told_at_once(
    store: Store,
) -> None:
    with pytest.raises(BadRequest, match="trunkline webhook secret create"):
        await service(store).accept(URL, "acme")
    store.webhook_secrets.create("acme", 1.0)
    with pytest.raises(BadRequest, match="not public"):
        await service(store).accept("https://b.example/", "acme")


def test_each_tenant_signs_with_its_own_and_the_operator_for_its_webhook(store: Store) -> None:
    secrets = {name: store.webhook_secrets.create(name, 1.0) for name in ("acme", "other", "*")}

    def signers(tenant: str, url: str) -> tuple[str, ...]:
        event = WebhookEvent(tenant, "job_1", "job.succeeded", url)
        delivery = Delivery("evt_1", event, 1.0, DeliveryState.WAITING, 1, 1, 1.0)
        return service(store, OWN).signers(delivery, 2.0)

    assert signers("acme", URL) == (secrets["acme"],)
    assert signers("other", URL) == (secrets["other"],)
    assert signers("nobody", URL) == ()
    assert signers("acme", OWN) == (secrets["*"],)
