"""A fleet with agents in several regions, over real sessions joined in memory."""

from typing import Any

from gateway.dispatch.dispatcher import DispatchSettings
from gateway.dispatch.region_gate import RegionGate
from gateway.scheduling.regions.settings import RegionSettings
from gateway.scheduling.regions.standing import Standing
from tests.gateway.dispatch.answers import HEAD
from tests.gateway.fleet.fleet import Client, FakeAgent, Fleet, deployment

GRACE_S = 3.0


PRICED = RegionSettings(home="eu", prices={"us": 5.0}, failback_s=60.0, ramp_s=60.0)


class Regions:
    """A fleet with an agent in each region, as far away as is said."""

    def __init__(
        self, settings: RegionSettings = PRICED, *, slots: int = 1, policy: str = "cost", **rtts_s: float
    ) -> None:
        dispatch = DispatchSettings(reconnect_grace_s=GRACE_S, slow_start_s=0)
        self.fleet = Fleet(settings=dispatch, policy=policy)
        self.gate: RegionGate = self.fleet.dispatcher.follow_regions(settings)
        self.agents: dict[str, FakeAgent] = {}
        for region, rtt_s in (rtts_s or {"eu": 0.0, "us": 0.0}).items():
            self.come(region, slots, rtt_s)
        self.fleet.advance(1.0)

    def come(self, region: str, slots: int = 1, rtt_s: float = 0.0) -> FakeAgent:
        labels = {"region": region}
        agent = self.agents[region] = self.fleet.connect(region, deployment(slots=slots), labels=labels)
        session = self.fleet.session(agent)
        session.endpoint.session.rtt_s = rtt_s
        session._round_trip_measured()
        return agent

    def ask(self, **more: Any) -> Client:
        return self.fleet.submit(self.fleet.request(**more))

    def went(self) -> list[str]:
        """Where what was sent is, in order of the regions."""
        return [region for region, agent in self.agents.items() for _ in agent.open_streams]

    def end(self, region: str) -> None:
        """All that runs there is answered."""
        for each in self.agents[region].open_streams:
            each.stream.send_head(HEAD)
            each.stream.end(None)
            each.closed = True
        self.fleet.settle()

    def standing(self, region: str) -> Standing:
        return self.gate.watch.standings[region].standing
