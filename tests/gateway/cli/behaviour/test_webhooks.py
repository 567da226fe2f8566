"""``trunkline webhook``: secrets are shown once, and lists hold nothing that receivers keep secret."""

import json
from pathlib import Path

import pytest

from gateway.domain.webhooks import DeliveryState, DeliveryVerdict, WebhookEvent
from gateway.storage import Store
from gateway.storage.webhooks.events import note_events
from gateway.storage.webhooks.outbox import DeliveryClaim
from tests.gateway.cli.command_line import Run


def test_a_secret_is_on_the_last_line_and_in_no_list(run: Run) -> None:
    made = run("webhook", "secret", "create", "acme")
    secret = made.stdout.splitlines()[-1]
    assert secret.startswith("whsec_")
    again = run("webhook", "secret", "rotate", "acme", "--overlap", "1h")
    assert again.stdout.splitlines()[-1] not in (secret, "")
    assert "signs, too, until" in again.stderr
    listed = run("webhook", "secret", "list")
    assert "acme" in listed.stdout
    assert "whsec_" not in listed.stdout
    taken = run("webhook", "secret", "create", "acme")
    assert (taken.exit_code, "secret rotate acme" in taken.stderr) == (1, True)
    run("webhook", "secret", "remove", "acme")
    assert "no tenant has a webhook secret" in run("webhook", "secret", "list").stderr


@pytest.mark.parametrize("bad", [("create", "a/b"), ("rotate", "acme", "--overlap", "soon")])
def test_what_cannot_be_is_refused(run: Run, bad: tuple[str, ...]) -> None:
    run("webhook", "secret", "create", "acme")
    assert run("webhook", "secret", *bad).exit_code == 2


def test_deliveries_are_listed_and_made_again(run: Run, state: Path) -> None:
    run("webhook", "secret", "create", "acme")
    with Store.open(state) as store:
        event = WebhookEvent("acme", "job_1", "job.failed", "https://a.example/hook?token=hidden")
        with store.database.write() as connection:
            note_events(connection, [event, event], 1.0)
        first, _ = store.webhooks.claim(DeliveryClaim(9, 60.0, 9, 9), 2.0)
        failed = DeliveryVerdict(DeliveryState.FAILED, None, 500, "it answers 500")
        store.webhooks.settle(first, failed, 3.0)
    table = run("webhook", "deliveries", "--outcome", "failed").stdout
    assert "https://a.example/hook?…" in table
    assert "it answers 500" in table
    assert "hidden" not in table
    (shown,) = json.loads(run("webhook", "deliveries", "--outcome", "failed", "--json").stdout)
    assert (shown["id"], shown["object"], shown["status"]) == (first.id, "job_1", 500)
    assert len(json.loads(run("webhook", "deliveries", "--tenant", "acme", "--json").stdout)) == 2
    assert "no deliveries" in run("webhook", "deliveries", "--object", "job_2").stderr
    assert run("webhook", "redeliver", first.id).exit_code == 0
    assert "no deliveries" in run("webhook", "deliveries", "--outcome", "failed").stderr
    for delivery, why in ((first.id, "still being delivered"), ("evt_x", "there is no delivery")):
        refused = run("webhook", "redeliver", delivery)
        assert (refused.exit_code, why in refused.stderr) == (1, True)
