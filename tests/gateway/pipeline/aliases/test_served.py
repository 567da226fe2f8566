"""Whether a version is there is known at once, also among many deployments of others."""

from gateway.domain.aliases import AliasTarget
from gateway.domain.residency import where_of
from gateway.pipeline.aliases.served import ABSENT_S, MOST, ServedVersions
from tests.gateway.pipeline.aliases.support import Desk, served

V2 = AliasTarget("m", "v2")


def test_what_was_found_once_is_not_looked_for_again_until_it_goes() -> None:
    desk = Desk()
    desk.serve(served("m", "v1"), served("m", "v2"))
    known = ServedVersions(desk.fleet.registry.index, desk.fleet.loop.time)
    request = desk.request("m")
    assert known(V2, request)
    assert known(V2, request)
    assert not known(V2, desk.request("m", route="embeddings"))
    assert not known(V2, desk.request("m", where=where_of({"region": ["eu"]})))
    desk.fleet.cut(desk.fleet.agents[1])
    assert not known(V2, request)
    assert known(AliasTarget("m"), request)


def test_a_deployment_that_becomes_another_version_counts_as_that() -> None:
    desk = Desk()
    desk.serve(served("m", "v2"))
    known = ServedVersions(desk.fleet.registry.index, desk.fleet.loop.time)
    assert known(V2, desk.request("m"))
    for deployment in desk.fleet.registry.index.serving("m"):
        deployment.version = "v3"
    assert not known(V2, desk.request("m"))


def test_a_version_that_comes_is_seen_within_a_moment() -> None:
    desk = Desk()
    desk.serve(served("m", "v1"))
    known = ServedVersions(desk.fleet.registry.index, desk.fleet.loop.time)
    request = desk.request("m")
    assert not known(V2, request)
    desk.serve(served("m", "v2"))
    desk.fleet.loop.advance(ABSENT_S)
    assert known(V2, request)


def test_what_is_remembered_has_an_end() -> None:
    desk = Desk()
    desk.serve(served("m", "v1"))
    known = ServedVersions(desk.fleet.registry.index, desk.fleet.loop.time)
    request = desk.request("m")
    for number in range(MOST + 10):
        assert not known(AliasTarget("m", f"x{number}"), request)
    assert len(known._found) <= MOST
