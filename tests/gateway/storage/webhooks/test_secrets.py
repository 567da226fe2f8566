"""Secrets of webhooks are shown once, kept encrypted, and two of them sign while one is being replaced."""

import base64

import pytest
from sqlalchemy import select

from gateway.storage import Store, schema
from gateway.storage.errors import BadValue, IdentityUnusable, NameTaken, UnknownRecord
from gateway.storage.webhooks.secrets import WebhookSecretRecord
from gateway.storage.wrapped_keys import CLUSTER_KEY_NAME


def test_a_secret_signs_for_its_tenant_and_lies_nowhere_in_plain_text(any_store: Store) -> None:
    text = any_store.webhook_secrets.create("acme", 5.0)
    assert text.startswith("whsec_")
    assert len(base64.b64decode(text.removeprefix("whsec_"))) == 32
    assert any_store.webhook_secrets.signers("acme", 6.0) == (text,)
    assert any_store.webhook_secrets.signers("other", 6.0) == ()
    assert [any_store.webhook_secrets.signable(each) for each in ("acme", "other")] == [True, False]
    assert any_store.webhook_secrets.list() == (WebhookSecretRecord("acme", 5.0, None, None),)
    with any_store.database.read() as connection:
        kept = " ".join(map(str, connection.execute(select(schema.webhook_secrets)).one()))
    assert text.removeprefix("whsec_") not in kept
    assert "whsec_" not in kept


def test_both_sign_until_the_overlap_ends(store: Store) -> None:
    old = store.webhook_secrets.create("acme", 5.0)
    record, new = store.webhook_secrets.rotate("acme", 100.0, 10.0)
    assert (record.rotated_s, record.previous_until_s) == (10.0, 110.0)
    assert store.webhook_secrets.signers("acme", 109.0) == (new, old)
    assert store.webhook_secrets.signers("acme", 110.0) == (new,)
    _, newest = store.webhook_secrets.rotate("acme", 0.0, 20.0)
    assert store.webhook_secrets.signers("acme", 21.0) == (newest,)
    assert len({old, new, newest}) == 3


def test_what_cannot_be_is_refused(store: Store) -> None:
    store.webhook_secrets.create("*", 1.0)
    store.webhook_secrets.create("acme", 1.0)
    with pytest.raises(NameTaken, match="rotate acme"):
        store.webhook_secrets.create("acme", 2.0)
    with pytest.raises(BadValue):
        store.webhook_secrets.create("a/b", 2.0)
    with pytest.raises(BadValue):
        store.webhook_secrets.rotate("acme", 1e9, 2.0)
    for act in (store.webhook_secrets.remove, store.webhook_secrets.get):
        with pytest.raises(UnknownRecord, match="secret create other"):
            act("other")
    with pytest.raises(UnknownRecord):
        store.webhook_secrets.rotate("other", 0.0, 2.0)


def test_acts_are_noted_without_the_secret(store: Store) -> None:
    text = store.webhook_secrets.create("acme", 1.0)
    store.webhook_secrets.rotate("acme", 60.0, 2.0)
    store.webhook_secrets.remove("acme")
    acts = store.acts.pending(9)
    assert [act.kind.partition(".")[2] for act in acts] == ["create", "rotate", "remove"]
    assert text[6:] not in str([act.what for act in acts])
    assert store.webhook_secrets.signers("acme", 3.0) == ()


def test_a_database_without_its_key_says_what_to_do(store: Store) -> None:
    store.webhook_secrets.create("acme", 1.0)
    (store.state_dir / CLUSTER_KEY_NAME).unlink()
    with pytest.raises(IdentityUnusable, match="make every secret anew"):
        store.webhook_secrets.signers("acme", 2.0)
