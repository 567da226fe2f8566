"""What a key's scopes let through."""

from fnmatch import fnmatchcase

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.auth.scope_checks import check_no_json, check_one_model, permitted_tier
from gateway.domain.errors import Forbidden
from gateway.domain.request import Tier
from gateway.domain.scopes import AdminRole, NamePatterns, Scopes, limited, scopes_of
from gateway.pipeline.bodies.facts import read_facts
from shared.protocol.routes import ROUTES

NAMES = st.text(st.sampled_from("ab-/.*?[]!x"), min_size=1, max_size=6)
SOME_ROUTES = st.sets(st.sampled_from(sorted(ROUTES)), min_size=1)
SOME_TIERS = st.sets(st.sampled_from(Tier), min_size=1)


def refusal(scopes: Scopes, model: str, route: str = "chat", tier: Tier | None = None) -> Forbidden | None:
    try:
        permitted_tier(scopes, model, route, tier)
    except Forbidden as error:
        return error
    return None


def fits(name: str, patterns: list[str]) -> bool:
    """A name that is written as a pattern is one of those it matches."""
    return name in patterns or any(fnmatchcase(name, pattern) for pattern in patterns)


@given(st.lists(NAMES, min_size=1, max_size=5), NAMES)
@example(["[?]"], "[?]")
def test_names_are_matched_as_fnmatch_does_and_as_they_are_written(patterns: list[str], name: str) -> None:
    assert (name in NamePatterns(tuple(patterns))) == fits(name, patterns)


@given(
    st.none() | st.lists(NAMES, min_size=1, max_size=3),
    st.none() | SOME_ROUTES,
    st.none() | SOME_TIERS,
    NAMES,
    st.sampled_from(sorted(ROUTES)),
    st.none() | st.sampled_from(Tier),
)
def test_only_what_every_scope_allows_gets_through(
    models: list[str] | None,
    routes: set[str] | None,
    tiers: set[Tier] | None,
    model: str,
    route: str,
    tier: Tier | None,
) -> None:
    scopes = limited(models, routes, tiers) or Scopes()
    model_fits = models is None or fits(model, models)
    route_fits = (routes is None and (models is None or route != "any")) or route in (routes or ())
    tier_fits = tiers is None or tier is None or tier in tiers
    allowed = model_fits and route_fits and tier_fits
    assert (refusal(scopes, model, route, tier) is None) is allowed
    if allowed:
        given_tier = permitted_tier(scopes, model, route, tier)
        assert given_tier in (tiers or Tier)
        assert tier in (None, given_tier)


@given(st.lists(NAMES), st.none() | SOME_ROUTES, st.none() | SOME_TIERS)
def test_scopes_outlive_being_written_down(
    models: list[str], routes: set[str] | None, tiers: set[Tier] | None
) -> None:
    scopes = limited(models, routes, tiers)
    assert scopes is not None
    assert scopes_of(scopes.to_dict()) == scopes


@pytest.mark.parametrize(
    ("scopes", "asked", "code", "message"),
    [
        (limited(["llama-*"]), ("gpt",), "model_not_allowed", "only these models: llama-*"),
        (limited([]), ("gpt",), "model_not_allowed", "no model at all"),
        (limited(["LLAMA"]), ("llama",), "model_not_allowed", "'llama'"),
        (limited(["llama"]), ("llama ",), "model_not_allowed", ""),
        (limited(["llama"]), ("llama\n",), "model_not_allowed", ""),
        (limited(["llama"]), ("llama", "any"), "route_not_allowed", "its routes name 'any'"),
        (limited(routes=["embeddings"]), ("m", "chat"), "route_not_allowed", "these routes: embeddings"),
        (limited(routes=["chat"]), ("m", "any"), "route_not_allowed", "these routes: chat"),
        (limited(tiers=["batch"]), ("m", "chat", Tier.REALTIME), "tier_not_allowed", "these tiers: batch"),
        (limited(tiers=["batch"]), ("m", "chat", Tier.STANDARD), "tier_not_allowed", "'standard'"),
        (limited(tiers=[]), ("m",), "tier_not_allowed", "no tier at all"),
    ],
)
def test_what_is_beyond_the_scopes_is_refused_and_told_what_is_allowed(
    scopes: Scopes, asked: tuple[str, str, Tier], code: str, message: str
) -> None:
    error = refusal(scopes, *asked)
    assert error is not None
    assert (error.status, error.code) == (403, code)
    assert message in error.message


def test_a_request_that_names_no_tier_gets_one_that_is_allowed() -> None:
    tiers: list[list[str]] = [["batch"], ["realtime"], ["batch", "realtime"], list(Tier)]
    got = [permitted_tier(Scopes(tiers=frozenset(each)), "m", "chat", None) for each in tiers]
    assert got == [Tier.BATCH, Tier.REALTIME, Tier.REALTIME, Tier.STANDARD]


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"a","Model":"b"}',
        b'{"MODEL":"a"}',
        b'{"model":"b","model":"a"}',
        b'{"model":"b","messages":[{"role":"user"}],"\\u006dodel" : "a"}',
        b'{"\\u006d\\u006F\\u0064\\u0065\\u006C":"b","x":{"model":1},"model":"a"}',
    ],
)
def test_json_in_which_an_engine_may_find_another_model_is_refused(body: bytes) -> None:
    facts = read_facts(body)
    with pytest.raises(Forbidden) as caught:
        check_one_model(Scopes(NamePatterns(("a",))), named=facts.named, members=facts.members)
    assert caught.value.code == "model_not_allowed"
    check_one_model(Scopes(), named=facts.named, members=facts.members)


@pytest.mark.parametrize(
    "begins",
    [
        b' \n{"model":"other"}',
        b"[1]",
        b'\xef\xbb\xbf{"model":"other"}',
        '{"model":"other"}'.encode("utf-16"),
        '{"model":"other"}'.encode("utf-32-be"),
        b" " * 2000,
        b'\n{"model":"other"}\r\n--XX\r\nContent-Disposition: form-data; name="model"\r\n\r\na\r\n--XX--',
    ],
)
def test_what_was_not_parsed_and_may_be_json_is_refused(begins: bytes) -> None:
    with pytest.raises(Forbidden) as caught:
        check_no_json(Scopes(NamePatterns(("a",))), [begins])
    assert caught.value.code == "model_not_allowed"
    check_no_json(Scopes(), [begins])


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"a"}',
        b'{"model":"a","tools":[{"properties":{"model":{"type":"string"},"make":{}}}]}',
        b'{"model":"a","messages":[{"content":"say \\"model\\": \\u006dodel"}],"x":"model"}',
    ],
)
def test_ordinary_json_passes_for_a_key_limited_to_models(body: bytes) -> None:
    facts = read_facts(body)
    check_one_model(Scopes(NamePatterns(("a",))), named=facts.named, members=facts.members)


def test_other_bodies_pass_for_a_key_limited_to_models() -> None:
    scopes = Scopes(NamePatterns(("a",)))
    for begins in (b"", b"RIFF....", b"\r\n--XX\r\n", b"--XX\r\n", b"\xff\xd8\xff\xe0", bytes(900) + b"{"):
        check_no_json(scopes, [begins])


def test_each_role_covers_those_below_it() -> None:
    assert [[a.covers(b) for b in AdminRole] for a in AdminRole] == [
        [True, False, False],
        [True, True, False],
        [True, True, True],
    ]
