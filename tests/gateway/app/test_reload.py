"""What SIGHUP changes, and that wrong settings change nothing."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.app.factories import engine_paths
from gateway.app.reload import Reload, shown_settings, taken_up
from gateway.domain.request import Principal
from gateway.runtime.config import ConfigError, Settings
from gateway.scheduling.queue.tickets import Capacity
from gateway.scheduling.queue.waiting_room import QueueSettings, WaitingRoom
from shared.protocol.messages import ResponseHead, Trailers
from tests.gateway.fleet.fleet import Fleet, deployment


def settings(**tables: Any) -> Settings:
    return Settings.model_validate(tables)


class Site:
    """Settings as the operator has them, and what was applied of them."""

    def __init__(self, before: Settings) -> None:
        self.now: Settings | ConfigError = before
        self.applied: list[Settings] = []
        self.reload = Reload(before, self._load, self.applied.append)

    def _load(self) -> Settings:
        if isinstance(self.now, ConfigError):
            raise self.now
        return self.now

    def say(self, now: Settings | ConfigError) -> list[dict[str, Any]]:
        self.now = now
        with capture_logs() as logs:
            self.reload()
        return [dict(each) for each in logs]


def test_what_can_change_is_applied_and_named() -> None:
    site = Site(settings())
    said = site.say(settings(dispatch={"policy": "session"}, queue={"tenant_weights": {"a": 2.0}}))
    assert said == [
        {
            "event": "settings_reloaded",
            "log_level": "info",
            "changed": ["dispatch.policy", "queue.tenant_weights"],
        }
    ]
    assert site.applied[0].dispatch.policy == "session"


def test_rules_of_reuse_are_taken_up_and_its_bounds_are_not() -> None:
    site = Site(settings())
    said = site.say(settings(reuse={"models": {"m": {"cache_s": 5}}, "entries": 7}))
    assert said[0]["changed"] == ["reuse.models"]
    assert said[1]["settings"] == ["reuse.entries"]
    assert site.applied[0].reuse.models["m"].cache_s == 5


def test_who_may_manage_engines_is_taken_up() -> None:
    site = Site(settings())
    said = site.say(settings(engines={"manage_role": "admin", "allow": {"*": ["/free"]}}))
    assert said[0]["changed"] == ["engines.allow", "engines.manage_role"]
    assert len(said) == 1
    assert site.applied[0].engines.manage_role == "admin"


@pytest.mark.parametrize("table", [{"manage": {"vlm": ["/a"]}}, {"allow": {"*": ["a path"]}}])
def test_rules_for_engines_paths_that_are_none_are_settings_errors(table: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"engines\.manage, engines\.allow: '(vlm|a path)' is no"):
        engine_paths(settings(engines=table))


def test_engines_paths_are_made_of_the_settings() -> None:
    table = {"manage_role": "none", "manage": {"vllm": ["/a"]}, "allow": {"*": ["/sleep"]}}
    paths = engine_paths(settings(engines=table))
    assert (paths.role, paths.manages("vllm", "GET", "/a")) == (None, True)
    assert not paths.manages("vllm", "POST", "/sleep")


def test_what_cannot_is_said_each_time_until_a_restart() -> None:
    site = Site(settings())
    for _ in range(2):
        said = site.say(settings(listen="127.0.0.1:9999", dispatch={"policies": {"m": "session"}}))
        assert said[-1]["event"] == "settings_need_a_restart"
        assert said[-1]["settings"] == ["listen"]
    assert said[0]["changed"] == [], "the policies were taken up the first time"


def test_wrong_settings_change_nothing() -> None:
    site = Site(settings())
    (said,) = site.say(ConfigError("line 3: what is this"))
    assert (said["event"], said["reason"]) == ("settings_kept", "line 3: what is this")
    assert not site.applied


@pytest.mark.parametrize("wrong", [{"policy": "no-such"}, {"policies": {"m": "no-such"}}])
def test_a_policy_there_is_none_of_is_refused_whole(wrong: dict[str, Any]) -> None:
    fleet = Fleet()
    asked: dict[str, Any] = {"policy": "cost", "policies": {}, "weights": {"t": 2.0}, **wrong}
    with pytest.raises(ValueError, match="no-such"):
        fleet.dispatcher.retune(**asked)
    assert fleet.dispatcher.scheduling.scheduler.policy_of("other") == "least-outstanding"
    assert fleet.dispatcher.room._weights == {}


def test_policies_change_while_requests_run_and_wait() -> None:
    fleet = Fleet()
    agents = [fleet.connect(name, deployment(slots=2)) for name in "ab"]
    for _ in range(6):
        fleet.submit()
    scheduler = fleet.dispatcher.scheduling.scheduler
    for default, named, policy in [("cost", {}, "cost"), ("cost", {"m": "round-robin"}, "round-robin")]:
        fleet.dispatcher.retune(default, named, {})
        assert scheduler.models["m"].policy.name == policy
        fleet.settle()
    for agent in agents:
        for each in agent.open_streams:
            each.stream.send_head(ResponseHead(200, (("content-type", "application/json"),)))
            each.stream.end(Trailers())
    fleet.settle()
    assert sum(len(agent.streams) for agent in agents) == 6


def test_those_who_wait_are_shared_out_by_the_new_weights() -> None:
    room = WaitingRoom(QueueSettings())
    fleet = Fleet()
    for number in range(24):
        request = fleet.request(input_tokens=100, output_tokens=100)
        request.principal = Principal("k", "key", "heavy" if number % 2 else "light")
        room.enter(request, Capacity(1, 0, 1.0), 0.0)
    before = [first(room) for _ in range(4)]
    room.reweigh({"heavy": 4.0})
    after = [first(room) for _ in range(10)]
    assert before.count("heavy") == 2
    assert after.count("heavy") >= 7


def first(room: WaitingRoom) -> str:
    (ticket,) = room.next_tickets("m", dict.fromkeys(room.lanes("m"), 1), 0.0)
    room.leave(ticket, 0.0, departed=True)
    return ticket.tenant


def test_the_settings_in_force_are_those_that_could_be_taken_up() -> None:
    before = settings(dispatch={"policy": "session"}, http={"head_s": 3})
    after = settings(dispatch={"policy": "cost", "stall_s": 3.0}, http={"head_s": 4})
    now = taken_up(before, after)
    assert (now.dispatch.policy, now.dispatch.stall_s, now.http.head_s) == ("cost", 10.0, 3)


def test_settings_are_shown_by_path_with_where_they_are_from_and_without_secrets() -> None:
    given = settings(http={"head_s": 3}, shared="redis://:hidden@cache/0", drain_s=7, log={})
    shown = {each.pop("path"): each for each in shown_settings(given)}
    assert shown["http.head_s"] == {"value": 3.0, "set": True, "changeable": False}
    assert shown["drain_s"] == {"value": 7.0, "set": True, "changeable": False}
    assert shown["log.level"] == {"value": "info", "set": False, "changeable": False}
    assert shown["dispatch.policy"] == {"value": "cost", "set": False, "changeable": True}
    assert shown["shared"]["set"]
    assert "hidden" not in str(shown)
    assert len(shown) > 100


def test_regions_that_do_not_fit_the_own_region_that_stays_change_nothing() -> None:
    """Which is taken up at a start only."""
    site = Site(settings(regions={"home": "eu", "pilot": ["us"]}))
    (said,) = site.say(settings(regions={"home": "us", "pilot": ["eu"]}))
    assert said["event"] == "settings_kept"
    assert "'eu' is this gateway's own region" in said["reason"]
    assert (site.applied, site.reload.settings.regions.pilot) == ([], ["us"])
    said, _ = site.say(settings(regions={"home": "us", "pilot": ["ap"], "prices": {"us>ap": 2.0}}))
    assert said["changed"] == ["regions.pilot", "regions.prices"]
    assert site.reload.settings.regions.pilot == ["ap"]
