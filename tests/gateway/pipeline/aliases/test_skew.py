"""Versions that differ where nothing tells them apart are counted and said, once for each change."""

import structlog

from gateway.domain.aliases import Alias, AliasTarget
from gateway.domain.slices import looked_at_once
from gateway.pipeline.aliases import SkewAlarm
from gateway.pipeline.aliases.skew import LOOK_S
from tests.gateway.pipeline.aliases.support import Desk, served


def events(logs: list[structlog.typing.EventDict]) -> list[tuple[str, object]]:
    told = [each for each in logs if each["event"].startswith("version_skew")]
    return [(each["event"], each.get("versions", each["model"])) for each in told]


def test_the_alarm_counts_the_versions_beyond_one() -> None:
    desk = Desk()
    alarm = SkewAlarm(desk.fleet.registry.index, desk.book, desk.fleet.loop)
    desk.serve(served("m", "v1"), served("n", "v1"))
    assert looked_at_once(alarm.figures()) == {}
    desk.serve(served("m", "v2"), served("m", ""))
    assert looked_at_once(alarm.figures()) == {"m": 2}
    desk.book.write(Alias("prod", (AliasTarget("m"),)))
    assert looked_at_once(alarm.figures()) == {"m": 2}
    desk.book.write(Alias("prod", (AliasTarget("m", "v1"),)))
    assert looked_at_once(alarm.figures()) == {}


def test_each_change_is_said_once_and_so_is_the_end() -> None:
    desk = Desk()
    SkewAlarm(desk.fleet.registry.index, desk.book, desk.fleet.loop)
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
