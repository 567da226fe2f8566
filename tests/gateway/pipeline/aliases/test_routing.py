"""From the name a client asks for to the model and version that answers."""

from collections import Counter
from collections.abc import Mapping

import pytest

from gateway.domain.aliases import Alias, AliasMirror, AliasTarget
from gateway.domain.errors import (
    BadRequest,
    EngineBusy,
    EngineError,
    NoDeployment,
    QueueFull,
    QueueTimeout,
)
from gateway.domain.request import Request
from gateway.domain.residency import where_of
from gateway.domain.surface import PATH_BYTES
from gateway.pipeline.aliases import AliasResolution
from tests.gateway.pipeline.aliases.support import Desk, served

V1, V2 = AliasTarget("m", "v1", 90.0), AliasTarget("m", "v2", 10.0)
CANARY = Alias("prod", (V1, V2))
FULL = QueueFull("full", retry_after_s=3.0)
BUSY = EngineBusy("busy", status=503, retry_after_s=3.0)


def way(desk: Desk, request: Request, fields: Mapping[bytes, bytes] | None = None) -> AliasResolution:
    found = desk.versions.resolve(fields or {}, request)
    assert found is not None
    return found


async def answered(
    desk: Desk, request: Request, fields: Mapping[bytes, bytes] | None = None
) -> tuple[Request, dict[bytes, bytes]]:
    """The request that was answered, and what its client is told."""
    found = way(desk, request, fields)
    response = await found.run(desk.run)
    return found.request, dict(found.headers(response, facts=True))


def test_a_name_that_is_no_alias_goes_its_way_untouched() -> None:
    desk = Desk(CANARY)
    request = desk.request("m")
    assert desk.versions.resolve({b"x-trunkline-fallback": b"allow"}, request) is None
    assert (request.model, request.version, request.alias) == ("m", None, None)


async def test_an_alias_becomes_one_of_its_models_in_its_version() -> None:
    desk = Desk(CANARY)
    desk.serve(served("m", "v1"), served("m", "v2"))
    request, headers = await answered(desk, desk.request("prod"))
    assert (request.model, request.alias) == ("m", "prod")
    assert request.version in ("v1", "v2")
    assert request.target == f"m@{request.version}"
    assert request.body.prefix == b'{"model":"m"}'
    assert headers == {b"x-trunkline-model": f"m@{request.version}".encode()}


def test_requests_are_shared_out_by_weight_and_those_of_a_session_stay_together() -> None:
    desk = Desk(CANARY)
    desk.serve(served("m", "v1"), served("m", "v2"))
    counted: Counter[str | None] = Counter()
    for _ in range(400):
        request = desk.request("prod")
        way(desk, request)
        counted[request.version] += 1
    assert 15 <= counted["v2"] <= 70
    for session in range(30):
        versions = set()
        for _ in range(4):
            request = desk.request("prod", session_key=f"s{session}")
            way(desk, request)
            versions.add(request.version)
        assert len(versions) == 1


def test_without_stickiness_a_sessions_requests_are_shared_out_as_all_others() -> None:
    desk = Desk(Alias("prod", (AliasTarget("m", "v1"), AliasTarget("m", "v2")), sticky=False))
    desk.serve(served("m", "v1"), served("m", "v2"))
    versions = set()
    for _ in range(40):
        request = desk.request("prod", session_key="s")
        way(desk, request)
        versions.add(request.version)
    assert versions == {"v1", "v2"}


def test_sessions_of_two_tenants_have_nothing_in_common() -> None:
    desk = Desk(Alias("prod", (AliasTarget("m", "v1"), AliasTarget("m", "v2"))))
    desk.serve(served("m", "v1"), served("m", "v2"))

    def versions(tenant: str) -> list[str | None]:
        found = []
        for session in range(40):
            request = desk.request("prod", session_key=f"s{session}")
            request.principal = type(request.principal)("k", "key", tenant)
            way(desk, request)
            found.append(request.version)
        return found

    assert versions("a") == versions("a") != versions("b")


def test_while_a_target_has_no_deployment_the_others_get_its_requests() -> None:
    desk = Desk(Alias("prod", (AliasTarget("m", "v1", 1.0), AliasTarget("m", "v2", 1e6))))
    desk.serve(served("m", "v1"))
    for _ in range(10):
        request = desk.request("prod")
        way(desk, request)
        assert request.version == "v1"


def test_a_target_that_would_be_loaded_counts_as_one_that_is() -> None:
    desk = Desk(Alias("prod", (AliasTarget("m", "v1", 1.0), AliasTarget("m", "v2", 1e6))))
    desk.load_on_demand()
    desk.serve(served("m", "v1"), served("m", "v2", loadable=True))
    request = desk.request("prod")
    way(desk, request)
    assert request.version == "v2"
    asked = desk.request("m")
    way(desk, asked, {b"x-trunkline-version": b"v2"})
    assert asked.version == "v2"


def test_a_target_counts_only_where_the_request_may_run_and_for_what_it_asks() -> None:
    desk = Desk(Alias("prod", (AliasTarget("m", "v1", 1.0), AliasTarget("n", None, 1e6))))
    desk.serve(served("m", "v1"), served("n", routes=("embeddings",)))
    request = desk.request("prod")
    way(desk, request)
    assert request.model == "m"
    elsewhere = desk.request("prod", where=where_of({"region": ["eu"]}), route="embeddings")
    way(desk, elsewhere)
    assert elsewhere.model == "n"  # nobody may take it: the first choice says so


# --- The version that a client asks for ---


@pytest.mark.parametrize(
    ("name", "version", "expected"),
    [("prod", "v2", "v2"), ("dark", "v3", "v3"), ("any", "v2", "v2"), ("m", "v1", "v1")],
)
async def test_a_client_may_ask_for_a_version_that_a_target_has(
    name: str, version: str, expected: str
) -> None:
    dark = Alias("dark", (V1, AliasTarget("m", "v3", 0.0)))
    desk = Desk(CANARY, dark, Alias("any", (AliasTarget("m"),)))
    desk.serve(served("m", "v1"), served("m", "v2"), served("m", "v3"))
    fields = {b"x-trunkline-version": version.encode()}
    request, headers = await answered(desk, desk.request(name), fields)
    assert (request.model, request.version) == ("m", expected)
    assert headers[b"x-trunkline-model"] == b"m@" + expected.encode()


@pytest.mark.parametrize(("name", "told"), [("prod", "v1, v2"), ("m", "v1, v2, v3"), ("nothing", "none")])
def test_a_version_that_no_target_has_is_refused_with_those_there_are(name: str, told: str) -> None:
    desk = Desk(CANARY)
    desk.serve(served("m", "v1"), served("m", "v2"), served("m", "v3"))
    version = "v3" if name == "prod" else "v9"
    with pytest.raises(BadRequest, match=f"Versions there are: {told}") as refused:
        desk.versions.resolve({b"x-trunkline-version": version.encode()}, desk.request(name))
    assert (refused.value.code, refused.value.param) == ("version_not_found", "x-trunkline-version")


# --- When there is nobody ---


async def test_a_version_nobody_serves_is_said_at_once_and_not_waited_for() -> None:
    desk = Desk(Alias("prod", (AliasTarget("m", "v9"),)))
    desk.serve(served("m", "v1"))
    with pytest.raises(NoDeployment, match="'prod' stands for m@v9 here, which is served by no agent now"):
        await way(desk, desk.request("prod")).run(desk.run)
    assert not desk.asked


async def test_a_version_whose_agent_has_just_gone_is_waited_for() -> None:
    desk = Desk(Alias("prod", (AliasTarget("m", "v2"),)))
    desk.serve(served("m", "v1"), served("m", "v2"))
    desk.fleet.cut(desk.fleet.agents[1])
    await answered(desk, desk.request("prod"))
    assert [each.version for each in desk.asked] == ["v2"]
    desk.fleet.loop.advance(6.0)
    with pytest.raises(NoDeployment):
        await way(desk, desk.request("prod")).run(desk.run)


async def test_an_alias_of_a_model_nobody_ever_served_is_a_503() -> None:
    desk = Desk(Alias("prod", (AliasTarget("unheard-of"),)))
    with pytest.raises(NoDeployment, match="'prod' stands for unheard-of"):
        await way(desk, desk.request("prod")).run(desk.run)


async def test_a_model_nobody_ever_served_has_its_fallbacks_all_the_same() -> None:
    desk = Desk(LIGHT)
    desk.serve(served("light"))
    request, _ = await answered(desk, desk.request("m"), {b"x-trunkline-fallback": b"allow"})
    assert request.model == "light"
    with pytest.raises(NoDeployment, match=r"^'m' is served by no agent now"):
        await way(desk, desk.request("m")).run(desk.run)


async def test_another_target_is_asked_only_when_the_first_has_gone_altogether() -> None:
    desk = Desk(Alias("prod", (AliasTarget("m", None, 1e6), AliasTarget("n", None, 1.0))))
    desk.serve(served("m"), served("n"))
    desk.troubles["m"] = NoDeployment("gone")
    with pytest.raises(NoDeployment, match="gone"):
        await way(desk, desk.request("prod")).run(desk.run)
    assert [each.model for each in desk.asked] == ["m"]
    found = way(desk, desk.request("prod"))
    desk.fleet.cut(desk.fleet.agents[0])
    await found.run(desk.run)
    assert [each.model for each in desk.asked] == ["m", "m", "n"]
    assert found.request.body.prefix == b'{"model":"n"}'


# --- Fallbacks ---

LIGHT = Alias("m", fallback=(AliasTarget("light"), AliasTarget("lighter", "v1")))


@pytest.mark.parametrize("error", [FULL, QueueTimeout("late"), BUSY, NoDeployment("none")])
async def test_a_lighter_model_answers_a_client_that_allows_it(error: Exception) -> None:
    desk = Desk(LIGHT)
    desk.serve(served("m"), served("light"))
    desk.troubles["m"] = error
    request, headers = await answered(desk, desk.request("m"), {b"x-trunkline-fallback": b"allow"})
    assert (request.model, request.version, request.alias, request.target) == ("light", None, "m", "light")
    assert request.body.prefix == b'{"model":"light"}'
    assert headers == {b"x-trunkline-model": b"light", b"x-trunkline-fallback": b"light"}
    assert desk.count("trunkline_fallbacks_total", alias="m", target="light") == 1


async def test_nobody_else_answers_a_client_that_does_not_allow_it() -> None:
    desk = Desk(LIGHT)
    desk.serve(served("m"), served("light"))
    desk.troubles["m"] = FULL
    for fields in ({}, {b"x-trunkline-fallback": b"no"}, {b"x-trunkline-fallback": b"other,allow"}):
        with pytest.raises(QueueFull):
            await way(desk, desk.request("m"), fields).run(desk.run)
    assert {each.model for each in desk.asked} == {"m"}


@pytest.mark.parametrize(
    ("allowed", "model"),
    [(b"lighter@v1, light", "lighter"), (b"light", "light"), (b"unknown,lighter@v1", "lighter")],
)
async def test_a_client_may_allow_some_of_them_in_its_own_order(allowed: bytes, model: str) -> None:
    desk = Desk(LIGHT)
    desk.serve(served("m"), served("light"), served("lighter", "v1"))
    desk.troubles["m"] = FULL
    request, _ = await answered(desk, desk.request("m"), {b"x-trunkline-fallback": allowed})
    assert request.model == model


async def test_when_all_are_full_the_client_is_told_of_what_it_asked_for() -> None:
    desk = Desk(LIGHT)
    desk.serve(served("m"), served("light"), served("lighter", "v1"))
    desk.troubles = {"m": FULL, "light": QueueFull("too"), "lighter": NoDeployment("too")}
    with pytest.raises(QueueFull) as refused:
        await way(desk, desk.request("m"), {b"x-trunkline-fallback": b"allow"}).run(desk.run)
    assert refused.value is FULL
    assert [each.model for each in desk.asked] == ["m", "light", "lighter"]


async def test_what_nobody_serves_is_passed_over_and_other_errors_are_final() -> None:
    desk = Desk(LIGHT)
    desk.serve(served("m"), served("lighter", "v1"))
    desk.troubles = {"m": FULL, "lighter": EngineError("broken")}
    with pytest.raises(EngineError):
        await way(desk, desk.request("m"), {b"x-trunkline-fallback": b"allow"}).run(desk.run)
    assert [each.model for each in desk.asked] == ["m", "lighter"]


async def test_a_fallback_may_be_an_alias_whose_own_fallbacks_do_not_count() -> None:
    other = Alias("light", (AliasTarget("n", "v1"),), fallback=(AliasTarget("m"),))
    desk = Desk(LIGHT, other)
    desk.serve(served("m"), served("n", "v1"))
    desk.troubles["m"] = FULL
    request, _ = await answered(desk, desk.request("m"), {b"x-trunkline-fallback": b"allow"})
    assert (request.model, request.version) == ("n", "v1")


async def test_a_fallback_whose_name_makes_the_path_too_long_is_passed_over() -> None:
    desk = Desk(LIGHT)
    desk.serve(served("m", routes=("infer",)), served("light", routes=("infer",)))
    desk.troubles["m"] = FULL
    path = "/v2/models/m/infer?x="
    fits = path + "a" * (PATH_BYTES - len("light") + len("m") - len(path))
    allowed = {b"x-trunkline-fallback": b"allow"}
    request, _ = await answered(desk, desk.request("m", route="infer", path=fits), allowed)
    assert (request.model, len(request.path)) == ("light", PATH_BYTES)
    with pytest.raises(QueueFull):
        await answered(desk, desk.request("m", route="infer", path=fits + "a"), allowed)


async def test_a_body_that_is_half_gone_cannot_go_elsewhere() -> None:
    desk = Desk(LIGHT)
    desk.serve(served("m"), served("light"))
    desk.troubles["m"] = FULL
    request = desk.request("m")
    request.body.rest_begun = True
    with pytest.raises(QueueFull):
        await way(desk, request, {b"x-trunkline-fallback": b"allow"}).run(desk.run)


async def test_the_first_request_keeps_what_those_who_still_hold_it_know() -> None:
    desk = Desk(LIGHT)
    desk.serve(served("m"), served("light"))
    desk.troubles["m"] = NoDeployment("busy")
    first = desk.request("m", attempts=["a/1"])
    request, _ = await answered(desk, first, {b"x-trunkline-fallback": b"allow"})
    assert (first.model, first.body.prefix) == ("m", b'{"model":"m"}')
    request.attempts.append("b/1")
    request.note_failure("b/1", 1.0)
    assert (first.attempts, request.attempts) == (["a/1"], ["a/1", "b/1"])
    assert not first.failed


# --- Shadows, and what is told ---


async def test_a_shadow_is_offered_what_goes_elsewhere_and_nothing_of_engines_own_paths() -> None:
    mirror = AliasMirror(AliasTarget("m", "v2"), 0.5)
    desk = Desk(Alias("prod", (V1,), mirror=mirror), Alias("all-v2", (V2,), mirror=mirror))
    desk.serve(served("m", "v1", routes=("chat", "any")), served("m", "v2"))
    await answered(desk, desk.request("prod", session_key="s"))
    await answered(desk, desk.request("prod", route="any"))
    await answered(desk, desk.request("all-v2"))
    ((offered, request, key),) = desk.offers.offered
    assert (offered, request.version, key) == (mirror, "v1", "tenant\ns")


async def test_facts_are_kept_from_tenants_that_shall_not_see_them_but_a_fallback_is_not() -> None:
    desk = Desk(LIGHT)
    desk.serve(served("m"), served("light"))
    desk.troubles["m"] = FULL
    found = way(desk, desk.request("m"), {b"x-trunkline-fallback": b"allow"})
    response = await found.run(desk.run)
    assert found.headers(response, facts=False) == [(b"x-trunkline-fallback", b"light")]


async def test_a_version_that_cannot_stand_in_a_header_spoils_none() -> None:
    desk = Desk(Alias("prod", (AliasTarget("m"),)))
    desk.serve(served("m"))
    found = way(desk, desk.request("prod"))
    response = await found.run(desk.run)
    response.version = "v1\r\nset-cookie: a=1 \u20ac"
    assert found.headers(response, facts=True) == [(b"x-trunkline-model", b"m@v1??set-cookie: a=1 ?")]


def test_a_request_for_one_version_is_not_let_in_by_free_slots_of_another() -> None:
    desk = Desk()
    desk.serve(served("m", "v1", slots=50), served("m", "v2", slots=1))
    fleet = desk.fleet
    running = [fleet.submit(desk.request("m", version="v2")) for _ in range(3)]
    later = fleet.submit(desk.request("m", version="v2", deadline_s=fleet.loop.now_s + 1.0))
    assert isinstance(later.error, QueueFull)
    assert fleet.submit(desk.request("m", version="v1", deadline_s=fleet.loop.now_s + 1.0)).outcomes == []
    for each in running:
        each.cancel()
