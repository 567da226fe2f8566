"""Join tokens: made, listed, revoked, counted."""

from pathlib import Path
from typing import Any

import pytest

from gateway.storage import DATABASE_NAME, Store, TokenState
from gateway.storage.errors import AmbiguousId, BadValue, EnrolmentRefused, UnknownRecord
from shared.identity import JoinToken
from shared.protocol.errors import JoinTokenInvalid
from tests.support.race import race

NOW_S = 1_800_000_000.0


@pytest.fixture
def store(any_store: Store) -> Store:
    return any_store


def make(store: Store, **changes: Any) -> JoinToken:
    values: dict[str, Any] = {"expires_in_s": 3600, "uses": 1, "models": ["*"], "labels": {}, "wall_s": NOW_S}
    return store.tokens.create(**(values | changes))[0]


def redeem(store: Store, token_id: str, wall_s: float) -> None:
    """Take one use of a token, as an agent that joins with it does."""
    with store._database.write() as connection:
        store.tokens.count_use(connection, store.tokens.usable(connection, token_id, wall_s))


def test_a_token_carries_the_gateways_fingerprint_and_is_kept_without_its_secret(
    file_store: Store, state_dir: Path
) -> None:
    store = file_store
    token, text = store.tokens.create(3600, 3, ["llama-*", "qwen"], {"region": "eu"}, NOW_S)
    assert JoinToken.decode(text) == token
    assert token.fingerprint == store.gateway_identity.fingerprint
    record = store.tokens.get(token.id_text)
    assert record is not None
    assert (record.uses_allowed, record.uses, record.expires_s) == (3, 0, NOW_S + 3600)
    assert (record.models, record.labels) == (("llama-*", "qwen"), {"region": "eu"})
    assert record.verifier == token.verifier()
    files = b"".join(path.read_bytes() for path in state_dir.glob(f"{DATABASE_NAME}*"))
    assert token.id_text.encode() in files
    assert token.secret not in files


@pytest.mark.parametrize(
    "changes",
    [
        {"uses": 0},
        {"uses": 100_001},
        {"expires_in_s": 0},
        {"expires_in_s": 367 * 86_400},
        {"expires_in_s": float("nan")},
        {"models": []},
        {"models": [""]},
        {"models": ["a\n"]},
        {"models": ["x"] * 65},
        {"labels": {"": "x"}},
        {"labels": {"a b": "x"}},
        {"labels": {"a": "x" * 64}},
        {"labels": {str(n): "" for n in range(33)}},
    ],
    ids=str,
)
def test_values_that_make_no_sense_are_refused(store: Store, changes: dict[str, Any]) -> None:
    with pytest.raises(BadValue):
        make(store, **changes)
    assert store.tokens.list() == ()


def test_a_token_lets_in_as_many_as_it_says(store: Store) -> None:
    token = make(store, uses=2)
    redeem(store, token.id_text, NOW_S)
    redeem(store, token.id_text, NOW_S)
    with pytest.raises(EnrolmentRefused, match="2 of 2 uses"):
        redeem(store, token.id_text, NOW_S)


def test_a_token_is_good_until_the_second_it_expires(store: Store) -> None:
    token = make(store, uses=5)
    redeem(store, token.id_text, NOW_S + 3599)
    with pytest.raises(EnrolmentRefused, match="has expired"):
        redeem(store, token.id_text, NOW_S + 3600)


def test_a_revoked_token_is_worth_nothing_even_unexpired(store: Store) -> None:
    token = make(store)
    store.tokens.revoke(token.id_text, NOW_S)
    with pytest.raises(EnrolmentRefused, match="was revoked"):
        redeem(store, token.id_text, NOW_S)


def test_a_token_never_made_is_unknown(store: Store) -> None:
    with pytest.raises(EnrolmentRefused, match="made no such join token"):
        redeem(store, "0" * 16, NOW_S)


def test_the_state_of_a_token_is_named(store: Store) -> None:
    tokens = [make(store, wall_s=NOW_S + n) for n in range(4)]
    redeem(store, tokens[1].id_text, NOW_S)
    store.tokens.revoke(tokens[2].id_text, NOW_S)
    states = [record.state(NOW_S + 3602) for record in store.tokens.list()]
    assert states == [TokenState.EXPIRED, TokenState.EXPIRED, TokenState.REVOKED, TokenState.ACTIVE]
    assert store.tokens.list()[1].state(NOW_S) is TokenState.USED_UP


def test_a_token_is_revoked_by_the_beginning_of_its_id_or_by_its_text(store: Store) -> None:
    first, second = make(store), make(store)
    assert store.tokens.revoke(first.id_text[:8], NOW_S).id == first.id_text
    assert store.tokens.revoke(second.encode(), NOW_S).id == second.id_text
    assert {record.state(NOW_S) for record in store.tokens.list()} == {TokenState.REVOKED}


def test_revoking_twice_keeps_the_first_time(store: Store) -> None:
    token = make(store)
    store.tokens.revoke(token.id_text, NOW_S)
    store.tokens.revoke(token.id_text, NOW_S + 9)
    assert store.tokens.list()[0].revoked_s == NOW_S


def test_what_names_no_token_or_several_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for tail in (b"a", b"b"):
        token = JoinToken(b"same-id" + tail, bytes(16), bytes(32))
        monkeypatch.setattr(JoinToken, "new", lambda _fingerprint, token=token: token)
        make(store)
    with pytest.raises(AmbiguousId, match="2 join tokens"):
        store.tokens.revoke(b"same".hex(), NOW_S)
    with pytest.raises(UnknownRecord, match="too short"):
        store.tokens.revoke("7", NOW_S)
    with pytest.raises(UnknownRecord, match="no join token"):
        store.tokens.revoke("%%%%", NOW_S)
    with pytest.raises(JoinTokenInvalid):
        store.tokens.revoke("tlj_short", NOW_S)


def test_processes_that_redeem_at_once_share_the_uses_out_exactly(file_store: Store, state_dir: Path) -> None:
    store = file_store
    token = make(store, uses=25)
    printed = race(
        "from pathlib import Path; from gateway.storage import Store; "
        "from gateway.storage.errors import EnrolmentRefused",
        "store, good = Store.open(Path(sys.argv[1])), 0\n"
        "for _ in range(15):\n"
        "    try:\n"
        "        with store._database.write() as connection:\n"
        "            token = store.tokens.usable(connection, sys.argv[2], float(sys.argv[3]))\n"
        "            store.tokens.count_use(connection, token)\n"
        "        good += 1\n"
        "    except EnrolmentRefused:\n"
        "        pass\n"
        "store.close()\n"
        "print(good)",
        str(state_dir),
        token.id_text,
        str(NOW_S),
    )
    assert sum(map(int, printed)) == 25
    assert store.tokens.list()[0].uses == 25
