"""What the claims of a token grant."""

from typing import Any

import pytest

from gateway.auth.oidc.claims import VALUES, claim, principal_of
from gateway.auth.oidc.verify import TokenRefused, Verified
from gateway.domain.request import Principal
from gateway.domain.scopes import AdminRole, limited
from tests.gateway.auth.minting import issuer


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
        principal({"org": tenant}, tenant_claim="org", tenants=("ac*", "a/b", "x*", ""))


def test_models_without_an_end_are_refused() -> None:
    with pytest.raises(TokenRefused, match="at most 64"):
        principal({"models": ["a"] * 65}, models_claim="models")
    with pytest.raises(TokenRefused, match="models cannot be used"):
        principal({"models": ["a\nb"]}, models_claim="models")
    assert principal({"roles": ["x"] * VALUES + ["admin"]}, roles_claim="roles").role is None
