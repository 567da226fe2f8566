"""What the loads run against: a gateway, an agent and a scripted engine, the tunnel shaped if wanted."""

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.tools.quickstart.processes import Child
from tests.support.processes import Engine, Gateway, House

MODEL = "scripted"


@dataclass(frozen=True, slots=True)
class LoadSite:
    house: House
    gateway: Gateway
    agent: Child
    engine: Engine
    key: str


def build(
    house: House,
    *,
    slots: int,
    rate_mbit: float | None = None,
    delay_ms: float = 0.0,
    environment: Mapping[str, str] | None = None,
    continues: str | None = None,
) -> LoadSite:
    """Start it; with ``rate_mbit`` the agent's tunnel goes through a link of that rate, both ways.
    ``environment`` is the gateway's; ``continues`` says how the engine goes on with answers that another one
    began, as the agent's setting of that name."""
    gateway = house.gateway(environment=environment)
    engine = house.engine("--model", MODEL)
    dial = gateway.url
    if rate_mbit is not None:
        shape = ("--rate-mbit", str(rate_mbit), "--delay-ms", str(delay_ms))
        target = ("--target", f"127.0.0.1:{gateway.port}")
        proxy = house.children.start("link", "tests.support.proxy", *target, *shape)
        dial = f"http://{house.listening(proxy)}"
    key = gateway.key("load")
    able = {} if continues is None else {"TRUNKLINE_AGENT_CONTINUES": continues}
    agent = house.agent(gateway, engine.url, "--slots", str(slots), dial=dial, environment=able)
    house.wait_for_model(gateway, key, MODEL)
    return LoadSite(house, gateway, agent, engine, key)
