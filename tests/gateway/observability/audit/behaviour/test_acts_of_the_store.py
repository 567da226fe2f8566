"""Every administrative act leaves its note, which holds no secret."""

from collections.abc import Callable

import orjson
import pytest

from gateway.domain.aliases import AliasTarget
from gateway.storage import Enrolment, Store
from shared.identity import generate_key, public_bytes

DAY_S = 86_400.0


def _join(store: Store) -> None:
    token, _ = store.tokens.create(DAY_S, 1, ["*"], {}, 1.0)
    key = public_bytes(generate_key())
    store.agents.enrol(Enrolment(token.id_text, "gpu-1", key, "ab", 2 * DAY_S), 2.0)


def _revoke_agent(store: Store) -> None:
    _join(store)
    store.agents.revoke("gpu-1", "host sold", 3.0)


def _make_key(store: Store) -> None:
    store.keys.create("alice", "t", 1.0)


def _revoke_key(store: Store) -> None:
    _make_key(store)
    store.keys.revoke("alice", 2.0)


def _rotate_key(store: Store) -> None:
    _make_key(store)
    store.keys.rotate("alice", 0, 2.0)


def _set_rates(store: Store) -> None:
    _make_key(store)
    store.keys.change("alice", {"rpm": 9})


def _revoke_token(store: Store) -> None:
    token, _ = store.tokens.create(DAY_S, 1, ["*"], {}, 1.0)
    store.tokens.revoke(token.id_text, 2.0)


def _set_alias(store: Store) -> None:
    store.aliases.set_targets("fast", (AliasTarget("m"),), 1.0)


def _remove_alias(store: Store) -> None:
    _set_alias(store)
    store.aliases.remove("fast", 2.0)


def _remove_price(store: Store) -> None:
    store.limits.prices.set("m", 1.0, 2.0, 0.0, 1.0)
    store.limits.prices.remove("m")


def _remove_tenant(store: Store) -> None:
    store.limits.tenants.change("t", {"rpm": 5}, 1.0)
    store.limits.tenants.remove("t")


def _rotate_the_gateways(store: Store) -> None:
    store.identity.rotate(0.0, 1.0)


ACTS: list[tuple[Callable[[Store], None], list[str]]] = [
    (_revoke_agent, ["token.create", "agent.join", "agent.revoke"]),
    (_revoke_key, ["key.create", "key.revoke"]),
    (_rotate_key, ["key.create", "key.rotate"]),
    (_set_rates, ["key.create", "key.set"]),
    (_revoke_token, ["token.create", "token.revoke"]),
    (_remove_alias, ["alias.set", "alias.remove"]),
    (_remove_price, ["price.set", "price.remove"]),
    (_remove_tenant, ["tenant.set", "tenant.remove"]),
    (_rotate_the_gateways, ["gateway.rotate_key"]),
]


@pytest.mark.parametrize(("do", "kinds"), ACTS, ids=[kinds[-1] for _, kinds in ACTS])
def test_it_is_noted(store: Store, do: Callable[[Store], None], kinds: list[str]) -> None:
    do(store)
    assert [act.kind for act in store.acts.pending(9)] == kinds


def test_who_joined_by_which_token_and_whose_key_was_made_is_said_and_no_secret(store: Store) -> None:
    _join(store)
    text = store.keys.create("alice", "t", 1.0)
    _, token_text = store.tokens.create(DAY_S, 1, ["*"], {}, 1.0)
    created, joined, made, _ = acts = store.acts.pending(9)
    assert joined.who == f"token:{created.what['token']}"
    assert (made.what["name"], made.what["tenant"], made.what["rpm"]) == ("alice", "t", None)
    noted = orjson.dumps([act.what for act in acts]).decode()
    assert text[6:] not in noted
    assert text[-4:] not in noted
    assert token_text[-16:] not in noted


def test_what_is_refused_is_not_noted(store: Store) -> None:
    _make_key(store)
    with pytest.raises(Exception, match="alice"):
        store.keys.create("alice", "t", 1.0)
    assert [act.kind for act in store.acts.pending(9)] == ["key.create"]
