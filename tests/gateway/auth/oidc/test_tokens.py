"""The door for tokens: what is remembered, for how long, and what makes it forget."""

from typing import Any

import pytest

from gateway.auth.clients import Authenticator
from gateway.auth.keys import KeyRing
from gateway.auth.oidc import KeySource, TokenAuthenticator
from gateway.auth.oidc import tokens as module
from gateway.auth.oidc.fetch import Fetched
from gateway.auth.oidc.tokens import VALUES, claim, principal_of
from gateway.auth.oidc.verify import TokenRefused, Verified
from gateway.domain.errors import IssuerUnavailable, Unauthenticated
from gateway.domain.request import Principal
from gateway.domain.scopes import AdminRole, limited
from gateway.storage import Store
from tests.gateway.auth.minting import ISSUER, NOW_S, issuer, jwk, jwks, token


class House:
    """A door, its clocks, and an issuer whose keys the test says."""

    def __init__(self, remembered: int = 10) -> None:
        self.wall_s = NOW_S
        self.now_s = 0.0
        self.document = jwks(jwk("ES256", "k1"))
        self.source = KeySource(issuer(), lambda: self.now_s, self.fetch)
        other = KeySource(issuer(issuer="https://other.example"), lambda: self.now_s, self.fetch)
        self.door = TokenAuthenticator([self.source, other], lambda: self.wall_s, remembered)

    async def fetch(self, url: str, ca_file: object) -> Fetched:
        return Fetched(self.document, None)

    def refusal(self, text: str) -> Unauthenticated:
        with pytest.raises(Unauthenticated) as caught:
            self.door.authenticate(text)
        return caught.value


@pytest.fixture
async def house() -> House:
    house = House()
    await house.source.refresh()
    return house


async def test_a_token_seen_before_is_not_verified_again(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = token()
    first = house.door.authenticate(text)
    monkeypatch.setattr(module, "verify_token", lambda *_: pytest.fail("verified again"))
    assert house.door.authenticate(text) is first


async def test_a_token_remembered_ends_with_its_time(house: House) -> None:
    text = token(exp=NOW_S + 100)
    house.door.authenticate(text)
    house.wall_s = NOW_S + 159.9
    assert house.door.authenticate(text)
    house.wall_s = NOW_S + 160
    error = house.refusal(text)
    assert (error.status, error.code, error.should_retry) == (401, "token_expired", False)
    assert len(house.door) == 0


async def test_a_key_that_its_issuer_withdraws_takes_its_tokens_along(house: House) -> None:
    text = token()
    house.door.authenticate(text)
    house.document = jwks(jwk("ES256", "k2", "b"))
    await house.source.refresh()
    assert house.refusal(text).code == "signing_key_unknown"
    assert house.door.authenticate(token("ES256", "k2", "b"))


async def test_the_same_keys_fetched_again_change_nothing(house: House) -> None:
    before = house.source.keys
    house.document = jwks(jwk("ES256", "k1", alg="ES256", use="sig"))
    await house.source.refresh()
    assert house.source.keys is before


async def test_an_unknown_key_asks_to_try_again(house: House) -> None:
    error = house.refusal(token("ES256", "new", "b"))
    assert (error.code, error.retry_after_s, error.should_retry) == ("signing_key_unknown", 1.0, True)


async def test_an_issuer_whose_keys_have_no_ids_may_change_its_key(house: House) -> None:
    house.document = jwks(jwk("ES256", None))
    await house.source.refresh()
    assert house.door.authenticate(token("ES256", None))
    house.document = jwks(jwk("ES256", None, "b"))
    error = house.refusal(token("ES256", None, "b"))
    assert (error.code, error.should_retry) == ("signing_key_unknown", True)
    assert house.source.key_unknown.is_set()
    await house.source.refresh()
    assert not house.source.key_unknown.is_set()
    assert house.door.authenticate(token("ES256", None, "b"))
    assert house.refusal(token("ES256", None)).code == "signing_key_unknown"


async def test_a_bad_signature_by_a_key_with_an_id_asks_for_nothing(house: House) -> None:
    assert house.refusal(token("ES256", "k1", "b")).code == "invalid_token"
    assert not house.source.key_unknown.is_set()


async def test_only_so_many_tokens_are_remembered_those_used_last() -> None:
    house = House(remembered=2)
    await house.source.refresh()
    first, second, third = (token(sub=name) for name in "abc")
    for text in (first, second, first, third):
        house.door.authenticate(text)
    assert len(house.door) == 2
    kept = [seen.principal.key_name for seen in house.door._seen.values()]
    assert kept == ["a", "c"]


async def test_refused_tokens_are_not_remembered(house: House) -> None:
    for number in range(20):
        house.refusal(token(aud=f"x{number}"))
    assert len(house.door) == 0


async def test_an_issuer_whose_keys_never_came_is_told_from_a_bad_token() -> None:
    with pytest.raises(IssuerUnavailable):
        House().door.authenticate(token())


async def test_an_issuer_vouches_for_its_own_tokens_only(house: House) -> None:
    assert house.refusal(token(iss="https://mallory.example")).code == "invalid_token"
    with pytest.raises(IssuerUnavailable):  # of the other issuer no keys are known, whoever signed this
        house.door.authenticate(token(iss="https://other.example"))


async def test_what_is_no_text_of_bytes_is_refused_too(house: House) -> None:
    for text in ("\udcff", "a.b.c", "\x00", ISSUER):
        assert house.refusal(text).code == "invalid_token"


async def test_keys_and_tokens_come_in_by_one_door(house: House, store: Store) -> None:
    door = Authenticator(KeyRing(store), house.door)
    assert (await door.identify(store.keys.create("laptop", "acme", 1.0))).key_name == "laptop"
    assert (await door.identify(token())).key_name == "alice"
    for text in ("", "sk-tl-nope", "sk-other"):
        with pytest.raises(Unauthenticated):
            await door.identify(text)


async def test_what_changed_in_the_store_counts_for_tokens_too(house: House, store: Store) -> None:
    changes: list[None] = []
    ring = KeyRing(store)
    ring.refresher.add(lambda: lambda: changes.append(None))
    store.keys.create("laptop", "acme", 1.0)
    await Authenticator(ring, house.door).identify(token())
    assert changes == [None]


def principal(claims: dict[str, Any], subject: str = "alice", **settings: Any) -> Principal:
    return principal_of(Verified(subject, 1.0, claims), issuer(**settings))


def test_without_claims_named_a_holder_has_no_limits_and_no_role() -> None:
    found = principal({"models": ["a"], "roles": ["admin"], "tenant": "acme", "tiers": ["batch"]})
    assert (found.tenant, found.scopes, found.role, found.key_name) == ("default", None, None, "alice")


def test_holders_are_told_apart_by_issuer_and_subject() -> None:
    ids = {principal({}, subject).key_id for subject in ("alice", "bob", "alice")}
    assert len(ids) == 2
    assert all(len(each) == 20 for each in ids)
    assert principal({}, "x" * 100).key_name == principal({}, "x" * 100).key_id


def test_a_claim_that_is_named_and_missing_grants_nothing() -> None:
    found = principal({}, models_claim="models", tiers_claim="tiers", roles_claim="roles")
    assert (found.scopes, found.role) == (limited([], None, []), None)


@pytest.mark.parametrize("value", [7, None, True, {"a": 1}, [1, None], ""])
def test_a_claim_of_a_wrong_kind_grants_nothing(value: object) -> None:
    names = {"models_claim": "m", "tiers_claim": "m", "roles_claim": "m"}
    found = principal({"m": value}, **names)
    assert (found.scopes, found.role) == (limited([], None, []), None)


@pytest.mark.parametrize("value", [["llama-*", "qwen"], "llama-* qwen", "llama-*, qwen"])
def test_values_come_as_a_list_or_as_one_text(value: object) -> None:
    assert principal({"models": value}, models_claim="models").scopes == limited(["llama-*", "qwen"])


def test_tiers_that_there_are_not_grant_nothing() -> None:
    found = principal({"tiers": ["batch", "urgent"]}, tiers_claim="tiers")
    assert found.scopes == limited(tiers=["batch"])


@pytest.mark.parametrize(
    ("values", "role"),
    [
        (["viewer"], AdminRole.VIEWER),
        (["viewer", "admin", "operator"], AdminRole.ADMIN),
        (["Admin"], None),
        (["root", "operator"], AdminRole.OPERATOR),
        ([], None),
    ],
)
def test_the_greatest_role_counts(values: list[str], role: AdminRole | None) -> None:
    assert principal({"roles": values}, roles_claim="roles").role is role


def test_what_an_issuer_calls_its_roles_is_for_the_operator_to_say() -> None:
    settings: dict[str, Any] = {"roles_claim": "groups", "roles": {"gpu-ops": AdminRole.OPERATOR}}
    assert principal({"groups": ["gpu-ops", "admin"]}, **settings).role is AdminRole.OPERATOR


def test_a_claim_is_found_by_its_name_before_by_its_dots() -> None:
    nested = {"realm_access": {"roles": ["viewer"]}}
    assert claim(nested, "realm_access.roles") == ["viewer"]
    assert claim({"realm_access.roles": 1, **nested}, "realm_access.roles") == 1
    assert claim({"https://example.com/roles": 2}, "https://example.com/roles") == 2
    assert claim({"a": "text"}, "a.b.c") is None


def test_the_tenant_comes_from_its_claim() -> None:
    assert principal({"org": "acme"}, tenant_claim="org").tenant == "acme"


@pytest.mark.parametrize("tenant", [None, 5, ["acme"], "", "a/b", "x" * 65, "other"])
def test_a_tenant_that_the_issuer_may_not_speak_for_is_refused(tenant: object) -> None:
    with pytest.raises(TokenRefused, match="tenant"):
        principal({"org": tenant}, tenant_claim="org", tenants=("ac*", "a/b", "x*"))


def test_models_without_an_end_are_refused() -> None:
    with pytest.raises(TokenRefused, match="at most 64"):
        principal({"models": ["a"] * 65}, models_claim="models")
    with pytest.raises(TokenRefused, match="models cannot be used"):
        principal({"models": ["a\nb"]}, models_claim="models")
    assert principal({"roles": ["x"] * VALUES + ["admin"]}, roles_claim="roles").role is None
