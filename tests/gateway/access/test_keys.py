"""Looking client keys up: always as fresh as the store."""

import pytest

from gateway.access import KeyRing
from gateway.errors import Unauthenticated
from gateway.store import KeyStore, Store
from gateway.store.errors import StateError
from gateway.where import read_where
from tests.support.race import elsewhere

IN_ANOTHER_PROCESS = """
from pathlib import Path
from gateway.store import Store
with Store.open(Path(sys.argv[1])) as store:
    {}
"""


def test_a_key_tells_who_holds_it(store: Store) -> None:
    text = store.keys.create("laptop", "acme", 1.0)
    principal = KeyRing(store).authenticate(text)
    assert (principal.key_name, principal.tenant) == ("laptop", "acme")
    assert principal.key_id == store.keys.list()[0].id


@pytest.mark.parametrize(
    ("presented", "complaint"),
    [
        ("", "No API key was given"),
        ("sk-proj-123", "begin with 'sk-tl-'"),
        ("sk-tl-" + "a" * 43, "Incorrect API key"),
        ("sk-tl-", "Incorrect API key"),
        ("sk-tl-" + "a" * 10_000, "not an API key"),
        ("sk-tl-\udcff", "Incorrect API key"),
        ("sk-tl-é", "Incorrect API key"),
    ],
)
def test_what_is_no_key_is_refused_with_a_word_of_help(store: Store, presented: str, complaint: str) -> None:
    with pytest.raises(Unauthenticated, match=complaint) as caught:
        KeyRing(store).authenticate(presented)
    assert len(presented) < 8 or presented not in caught.value.message


def test_a_key_made_by_another_store_works_at_once(store: Store, command: Store) -> None:
    ring = KeyRing(store)
    assert ring.authenticate(command.keys.create("laptop", "default", 1.0)).key_name == "laptop"


def test_a_key_revoked_by_another_process_is_refused_from_the_next_call_on(store: Store) -> None:
    text = store.keys.create("laptop", "default", 1.0)
    ring = KeyRing(store)
    assert ring.authenticate(text)
    elsewhere(IN_ANOTHER_PROCESS.format("store.keys.revoke('laptop', 2.0)"), str(store.state_dir))
    with pytest.raises(Unauthenticated, match="was revoked"):
        ring.authenticate(text)


def test_a_key_made_by_another_process_works_from_the_next_call_on(store: Store) -> None:
    ring = KeyRing(store)
    code = IN_ANOTHER_PROCESS.format("print(store.keys.create('laptop', 'default', 2.0))")
    assert ring.authenticate(elsewhere(code, str(store.state_dir)).strip())


def test_a_name_used_again_makes_another_key(store: Store, command: Store) -> None:
    ring = KeyRing(store)
    old = command.keys.create("laptop", "default", 1.0)
    command.keys.revoke("laptop", 2.0)
    new = command.keys.create("laptop", "default", 3.0)
    assert ring.authenticate(new).key_name == "laptop"
    with pytest.raises(Unauthenticated, match="was revoked"):
        ring.authenticate(old)


def test_an_unchanged_store_is_not_read_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    text = store.keys.create("laptop", "default", 1.0)
    ring = KeyRing(store)
    monkeypatch.setattr(KeyStore, "changed_since", lambda *_: pytest.fail("read again"))
    assert ring.authenticate(text)


def test_nobody_is_let_in_on_old_news_when_the_store_is_gone(store: Store) -> None:
    text = store.keys.create("laptop", "default", 1.0)
    ring = KeyRing(store)
    store.close()
    with pytest.raises(StateError):
        ring.authenticate(text)


def test_revoked_keys_stay_counted(store: Store) -> None:
    store.keys.create("a", "default", 1.0)
    store.keys.create("b", "default", 1.0)
    store.keys.revoke("a", 2.0)
    assert len(KeyRing(store)) == 2


def test_a_key_says_where_its_requests_may_run(store: Store) -> None:
    eu = read_where("region=eu,region=uk")
    ring = KeyRing(store)
    assert ring.authenticate(store.keys.create("laptop", "acme", 1.0, eu)).where == eu
    assert ring.authenticate(store.keys.create("anywhere", "acme", 1.0)).where is None
