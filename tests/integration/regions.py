"""Gateways that serve other ones as their agents, and what is asked of them."""

import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

import aiohttp

from tests.integration.conftest import MODEL
from tests.support.processes import Engine, Gateway, House

WAIT_S = 30.0
GOES_ON = {"TRUNKLINE_AGENT_CONTINUES": "chat=final_message"}
"""The scripted engine takes up an answer that another one began."""
IN_TURNS = {"TRUNKLINE_GATEWAY_DISPATCH__POLICY": "round-robin"}


@dataclass(frozen=True)
class Region:
    """A parent, its child, and the child's agent with an engine."""

    house: House
    parent: Gateway
    child: Gateway
    engine: Engine
    key: str
    """Of the parent."""

    @property
    def child_key(self) -> str:
        return self.child.key("local")


def join(
    house: House,
    parent: Gateway,
    *arguments: str,
    name: str = "region",
    dial: str | None = None,
    labels: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    port: int | None = None,
) -> Gateway:
    """Start a child of ``parent``."""
    return house.gateway(
        *("--uplink", dial or parent.url, "--join", parent.token(labels=labels)),
        *arguments,
        name=name,
        environment={"TRUNKLINE_GATEWAY_UPLINK__NAME": name, **(environment or {})},
        port=port,
    )


def build(house: House, *, slots: int = 4, dial: str | None = None, parent: Gateway | None = None) -> Region:
    parent = parent or house.gateway(name="parent")
    child = join(house, parent, dial=dial)
    engine = house.engine("--model", MODEL)
    # An agent whose gateway was killed keeps what it could not deliver to it, for as long as it drains.
    arguments = ("--slots", str(slots), "--drain-s", "2")
    house.agent(child, engine.url, *arguments, name="gpu-1", environment=GOES_ON)
    key = parent.key("tests")
    house.wait_for_model(parent, key, MODEL)
    return Region(house, parent, child, engine, key)


@contextlib.asynccontextmanager
async def client(gateway: Gateway, key: str) -> AsyncIterator[aiohttp.ClientSession]:
    headers, timeout = {"authorization": f"Bearer {key}"}, aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(gateway.url, headers=headers, timeout=timeout) as session:
        yield session


def where(place: str) -> dict[str, str]:
    return {"x-trunkline-where": place}


def text_of(stream: bytes) -> str:
    events = [line[6:] for line in stream.decode().splitlines() if line.startswith("data: {")]
    pieces = [choice["delta"].get("content") for event in events for choice in json.loads(event)["choices"]]
    return "".join(piece or "" for piece in pieces)
