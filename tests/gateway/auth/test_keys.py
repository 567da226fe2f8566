"""Looking client keys up: always as fresh as the store."""

import asyncio
import threading
from collections.abc import Sequence

import pytest

from gateway.auth import KeyRing
from gateway.auth.keys import IN_PLACE, Credential
from gateway.domain.errors import Unauthenticated
from gateway.domain.residency import read_where
from gateway.domain.scopes import AdminRole, limited
from gateway.storage import KeyRecord, KeyStore, Store
from gateway.storage.errors import StateError
from tests.bench.scale import make_keys
from tests.support.race import elsewhere


class Wall:
    """Unix time, as the test says."""

    def __init__(self, now_s: float) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


IN_ANOTHER_PROCESS = """
from pathlib import Path
from gateway.storage import Store
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


def test_a_credential_that_is_kept_counts_as_long_as_its_key_does(store: Store, command: Store) -> None:
    kept = Credential(store.keys.create("laptop", "acme", 1.0))
    ring = KeyRing(store)
    assert ring.authenticate(kept) == ring.authenticate(str(kept))
    assert ring.authenticate(kept).key_name == "laptop"
    command.keys.revoke("laptop", 2.0)
    with pytest.raises(Unauthenticated, match="was revoked"):
        ring.authenticate(kept)
    with pytest.raises(Unauthenticated, match="not an API key"):
        ring.authenticate(Credential("sk-tl-" + "a" * 10_000))


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


# --- ends, rotation, last use ---


def refusal(ring: KeyRing, text: str) -> str:
    with pytest.raises(Unauthenticated) as caught:
        ring.authenticate(text)
    assert caught.value.status == 401
    return caught.value.code


def test_a_key_says_what_its_holder_may_ask_for_and_do(store: Store) -> None:
    scopes = limited(["llama-*"], tiers=["batch"])
    text = store.keys.create("ci", "acme", 1.0, scopes=scopes, role=AdminRole.VIEWER)
    principal = KeyRing(store).authenticate(text)
    assert (principal.scopes, principal.role) == (scopes, AdminRole.VIEWER)
    plain = KeyRing(store).authenticate(store.keys.create("plain", "acme", 1.0))
    assert (plain.scopes, plain.role) == (None, None)


def test_a_key_is_refused_from_its_end_on_and_says_so(store: Store) -> None:
    clock = Wall(100.0)
    ring = KeyRing(store, clock)
    text = store.keys.create("ci", "acme", 100.0, life_s=60.0)
    clock.now_s = 159.9
    assert ring.authenticate(text)
    clock.now_s = 160.0
    assert refusal(ring, text) == "key_expired"


def test_both_secrets_work_until_the_overlap_is_over(store: Store, command: Store) -> None:
    clock = Wall(100.0)
    ring = KeyRing(store, clock)
    old = command.keys.create("ci", "acme", 1.0)
    before = ring.authenticate(old)
    _, new = command.keys.rotate("ci", 60.0, 100.0)
    assert ring.authenticate(new) == ring.authenticate(old) == before
    clock.now_s = 160.0
    assert refusal(ring, old) == "key_expired"
    assert ring.authenticate(new) == before
    assert len(ring) == 1


def test_a_secret_that_was_rotated_twice_is_unknown_at_once(store: Store) -> None:
    ring = KeyRing(store, Wall(100.0))
    first = store.keys.create("ci", "acme", 1.0)
    _, second = store.keys.rotate("ci", 60.0, 100.0)
    assert ring.authenticate(first)
    _, third = store.keys.rotate("ci", 0.0, 100.0)
    for text in (first, second):
        assert refusal(ring, text) == "invalid_api_key"
    assert ring.authenticate(third)


def test_revoking_ends_both_secrets(store: Store) -> None:
    ring = KeyRing(store, Wall(100.0))
    old = store.keys.create("ci", "acme", 1.0)
    _, new = store.keys.rotate("ci", 60.0, 100.0)
    ring.authenticate(old)
    store.keys.revoke("ci", 101.0)
    for text in (old, new):
        assert refusal(ring, text) == "invalid_api_key"


def test_the_secret_before_does_not_outlive_the_key(store: Store) -> None:
    clock = Wall(100.0)
    ring = KeyRing(store, clock)
    old = store.keys.create("ci", "acme", 100.0, life_s=30.0)
    store.keys.rotate("ci", 60.0, 100.0)
    clock.now_s = 130.0
    assert refusal(ring, old) == "key_expired"


def test_it_is_told_once_when_keys_were_last_used(store: Store) -> None:
    clock = Wall(100.0)
    ring = KeyRing(store, clock)
    text = store.keys.create("ci", "acme", 1.0, life_s=200.0)
    ring.authenticate(text)
    clock.now_s = 150.0
    ring.authenticate(text)
    (record,) = store.keys.list()
    assert ring.take_used() == {record.id: 150.0}
    clock.now_s = 500.0
    refusal(ring, text)
    assert ring.take_used() == {}


def test_an_entry_shows_no_digest(store: Store) -> None:
    store.keys.create("ci", "acme", 1.0)
    (record,) = store.keys.list()
    assert record.digest.hex() not in repr(record)
    assert repr(record.digest) not in repr(record)


class Held:
    """Readings of the store, each of which ends when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.threads: list[int] = []
        self.begun = threading.Semaphore(0)
        self.free = threading.Semaphore(0)
        read = KeyStore.changed_since

        def held(store: KeyStore, revision: int) -> tuple[int, Sequence[KeyRecord]]:
            found = read(store, revision)
            self.threads.append(threading.get_ident())
            self.begun.release()
            assert self.free.acquire(timeout=30)
            return found

        monkeypatch.setattr(KeyStore, "changed_since", held)

    async def until_read(self) -> None:
        assert await asyncio.to_thread(self.begun.acquire, timeout=30)


async def test_the_event_loop_waits_for_no_reading_of_keys(
    store: Store, command: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring, reading = KeyRing(store), Held(monkeypatch)
    text = command.keys.create("laptop", "default", 1.0)
    asked = asyncio.ensure_future(ring.identify(text))
    await reading.until_read()
    assert not asked.done()
    reading.free.release()
    assert (await asked).key_name == "laptop"
    assert threading.get_ident() not in reading.threads


async def test_a_key_revoked_while_keys_are_read_is_refused_to_who_asks_then(
    store: Store, command: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = store.keys.create("laptop", "default", 1.0)
    ring, reading = KeyRing(store), Held(monkeypatch)
    command.keys.create("other", "default", 1.0)
    before = asyncio.ensure_future(ring.identify(text))
    await reading.until_read()
    command.keys.revoke("laptop", 2.0)
    after = asyncio.ensure_future(ring.identify(text))
    await asyncio.sleep(0)
    reading.free.release(2)
    assert (await before).key_name == "laptop"
    with pytest.raises(Unauthenticated, match="was revoked"):
        await after


async def test_many_changed_keys_are_swapped_in_as_one_ring(
    store: Store, command: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = store.keys.create("laptop", "default", 1.0)
    ring, reading = KeyRing(store), Held(monkeypatch)
    make_keys(command.state_dir, IN_PLACE + 1)
    command.keys.revoke("laptop", 2.0)
    entries, digests = ring._entries, ring._digests
    asked = asyncio.ensure_future(ring.identify(text))
    await reading.until_read()
    reading.free.release()
    with pytest.raises(Unauthenticated, match="was revoked"):
        await asked
    assert (len(entries), len(digests)) == (1, 1), "who was let in meanwhile found the ring of before"
    assert len(ring) == len(ring._entries) == IN_PLACE + 2


async def test_few_changed_keys_are_put_into_the_ring_there_is(store: Store, command: Store) -> None:
    ring = KeyRing(store)
    entries = ring._entries
    assert await ring.identify(command.keys.create("laptop", "default", 1.0))
    assert ring._entries is entries


async def test_nobody_is_identified_by_old_news_when_the_store_is_gone(store: Store) -> None:
    text = store.keys.create("laptop", "default", 1.0)
    ring = KeyRing(store)
    store.close()
    with pytest.raises(StateError):
        await ring.identify(text)
