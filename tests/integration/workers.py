"""A gateway of two workers, with an agent and its engine, and who asks it."""

import json
import os
import ssl
import subprocess
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from gateway.domain.quotas import Rates
from gateway.domain.scopes import AdminRole
from gateway.storage import Store
from gateway.tools.quickstart.processes import Child
from shared.process.ports import free_port
from tests.integration.conftest import MODEL
from tests.support.logged_events import logged_events
from tests.support.processes import START_S, Engine, Gateway, House, command

SLOTS = 16


class FreshConnections(aiohttp.TCPConnector):
    """Each request has a connection of its own, which ends with it at once: with TLS one that were closed in
    order would outlive its session."""

    def _release(self, key: Any, protocol: Any, *, should_close: bool = False) -> None:
        protocol.abort()
        super()._release(key, protocol, should_close=True)


@dataclass(frozen=True, slots=True)
class WorkersSite:
    house: House
    supervisor: Child
    agent: Child
    engine: Engine
    state: Path
    url: str
    trust: ssl.SSLContext | None
    keys: dict[str, str]

    def client(self, key: str = "free", *, fresh: bool = False) -> aiohttp.ClientSession:
        """``fresh``: each request has a connection of its own, which the kernel gives to some worker."""
        kind = FreshConnections if fresh else aiohttp.TCPConnector
        connector = kind(limit=0, ssl=self.trust or True)
        headers = {"authorization": f"Bearer {self.keys[key]}"}
        return aiohttp.ClientSession(self.url, connector=connector, headers=headers)

    def command(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """A command of ``trunkline`` that asks this gateway as its operator."""
        more = () if self.trust is None else ("--ca-file", str(self.house.directory / "certificate.pem"))
        return subprocess.run(
            command(*arguments, "--url", self.url, *more),
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "TRUNKLINE_KEY": self.keys["operator"]},
            check=False,
        )

    def events(self, name: str) -> list[dict[str, Any]]:
        """Lines of the gateway's log about this."""
        return logged_events(self.supervisor.log, name)

    def pid(self, worker: int) -> int:
        return int([each["pid"] for each in self.events("worker_serves") if each["worker"] == worker][-1])


def workers_of(house: House, trust: Path | None, *arguments: str) -> WorkersSite:
    """A gateway with two workers, an agent and its engine, and keys."""
    url = f"{'http' if trust is None else 'https'}://127.0.0.1:{free_port()}"
    state = house.directory / "gateway-state"
    with Store.open(state, serve=True) as store:
        made = {"free": Rates(), "limited": Rates(rpm=40), "at-once": Rates(concurrency=3)}
        keys = {
            name: store.keys.create(name, "tests", time.time(), rates=rates) for name, rates in made.items()
        }
        keys["operator"] = store.keys.create("operator", "tests", time.time(), role=AdminRole.OPERATOR)
    tls = []
    if trust is not None:
        tls = ["--tls-cert", str(trust / "certificate.pem"), "--tls-key", str(trust / "key.pem")]
    supervisor = house.children.start(
        "gateway",
        "gateway",
        *("--listen", url.partition("//")[2], "--state", str(state), "--workers", "2"),
        *("--log-format", "json", *tls, *arguments),
    )
    context = None if trust is None else ssl.create_default_context(cafile=str(trust / "certificate.pem"))
    engine = house.engine("--model", MODEL)
    gateway = Gateway(supervisor, 0, state)
    certificate = {} if trust is None else {"SSL_CERT_FILE": str(trust / "certificate.pem")}
    site_log = supervisor.log
    house.children.wait_until(
        lambda: site_log.read_text().count('"worker_serves"') == 2, "both workers serve", START_S
    )
    agent = house.agent(gateway, engine.url, "--slots", str(SLOTS), dial=url, environment=certificate)
    site = WorkersSite(house, supervisor, agent, engine, state, url, context, keys)
    house.children.wait_until(lambda: both_offer(site), "the agent is at both", START_S)
    return site


def both_offer(site: WorkersSite) -> bool:
    """Whether twelve requests in a row, each on a connection of its own, find the model."""
    for _ in range(12):
        request = urllib.request.Request(
            f"{site.url}/v1/models", headers={"authorization": f"Bearer {site.keys['free']}"}
        )
        try:
            with urllib.request.urlopen(request, timeout=10, context=site.trust) as response:
                offered = json.loads(response.read())["data"]
        except OSError:
            return False
        if not offered:
            return False
    return True
