"""Whether a version is there is known at once; versions that differ are told once for each change."""

import structlog

from gateway.domain.aliases import Alias, AliasTarget
from gateway.domain.residency import where_of
from gateway.domain.slices import run_at_once
from gateway.pipeline.aliases import VersionSkewDetector
from gateway.pipeline.aliases.served_versions import ABSENT_S, LOOK_S, MOST, ServedVersions
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


def events(logs: list[structlog.typing.EventDict]) -> list[tuple[str, object]]:
    told = [each for each in logs if each["event"].startswith("version_skew")]
    return [(each["event"], each.get("versions", each["model"])) for each in told]


def test_the_alarm_counts_the_versions_beyond_one() -> None:
    desk = Desk()
    alarm = VersionSkewDetector(desk.fleet.registry.index, desk.book, desk.fleet.loop)
    desk.serve(served("m", "v1"), served("n", "v1"))
    assert run_at_once(alarm.figures()) == {}
    desk.serve(served("m", "v2"), served("m", ""))
    assert run_at_once(alarm.figures()) == {"m": 2}
    desk.book.write(Alias("prod", (AliasTarget("m"),)))
    assert run_at_once(alarm.figures()) == {"m": 2}
    desk.book.write(Alias("prod", (AliasTarget("m", "v1"),)))
    assert run_at_once(alarm.figures()) == {}


def test_each_change_is_said_once_and_so_is_the_end() -> None:
    desk = Desk()
    VersionSkewDetector(desk.fleet.registry.index, desk.book, desk.fleet.loop)
    with structlog.testing.capture_logs() as logs:
        desk.serve(served("m", "v1"), served("m", "v2"))
        desk.fleet.advance(LOOK_S)
        assert events(logs) == [("version_skew", ["v1", "v2"])]
        desk.serve(served("m", "v2", slots=3), served("n", "v1"))
        desk.fleet.advance(LOOK_S)
        assert len(events(logs)) == 1
        desk.serve(served("m", "v3"))
        desk.fleet.advance(LOOK_S)
        assert events(logs)[1:] == [("version_skew", ["v1", "v2", "v3"])]
        for agent in list(desk.fleet.agents):
            if "m-v1" not in agent.name:
                desk.fleet.cut(agent)
        desk.fleet.advance(LOOK_S)
        assert events(logs)[2:] == [("version_skew_over", "m")]
