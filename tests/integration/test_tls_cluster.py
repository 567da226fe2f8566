"""Two gateways of two workers each, with TLS by a private CA: whichever worker a question lands on, it
reaches the one that is meant, and whoever is asked tells of all."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gateway.domain.store_address import StoreAddress
from gateway.tools.quickstart.processes import Child
from shared.process.ports import free_port
from tests.integration.conftest import MODEL
from tests.support.processes import START_S, Gateway, House, command, until
from tests.support.tls import make_certificate

pytestmark = pytest.mark.cluster

GATEWAYS, WORKERS = ("a", "b"), 2


class TlsCluster:
    """Started by command lines and settings alone; nothing trusts the certificate but what is told to."""

    def __init__(self, house: House, store: str) -> None:
        self.house, self.store = house, store
        self.ca_file, self.tls_key = make_certificate(house.directory)
        self.cluster_key = house.directory / "cluster.key"
        self.ports = {name: free_port() for name in GATEWAYS}
        self.children: dict[str, Child] = {}
        self.run("store", "init", "--store", store, "--cluster-key", str(self.cluster_key))
        made = self.run("key", "create", "--store", store, "--name", "tests", "--role", "admin")
        self.key = made.splitlines()[-1]

    def run(self, *arguments: str) -> str:
        """What a command prints; it must succeed."""
        done = subprocess.run(
            command(*arguments), capture_output=True, text=True, timeout=60, check=False, env=dict(os.environ)
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def url(self, name: str) -> str:
        return f"https://127.0.0.1:{self.ports[name]}"

    def start(self, name: str, ca_file: Path | None) -> None:
        environment = {"TRUNKLINE_GATEWAY_CLUSTER__PROCESS": name}
        if ca_file is not None:
            environment["TRUNKLINE_GATEWAY_CLUSTER__CA_FILE"] = str(ca_file)
        self.children[name] = self.house.children.start(
            name,
            "gateway",
            *("--listen", f"127.0.0.1:{self.ports[name]}", "--state", str(self.house.directory / name)),
            *("--tls-cert", str(self.ca_file), "--tls-key", str(self.tls_key)),
            *("--store", self.store, "--cluster-key", str(self.cluster_key)),
            *("--workers", str(WORKERS), "--log-format", "json"),
            environment=environment,
        )

    def serves(self, name: str) -> bool:
        return self.children[name].log.read_text().count('"worker_serves"') == WORKERS

    def agent(self) -> None:
        engine = self.house.engine("--model", MODEL)
        token = self.run("token", "create", "--store", self.store).splitlines()[-1]
        joined = Gateway(self.children["a"], self.ports["a"], self.house.directory / "a")
        trust = {"SSL_CERT_FILE": str(self.ca_file)}
        self.house.agent(joined, engine.url, dial=self.url("a"), token=token, environment=trust)

    def status(self, name: str, *arguments: str) -> str:
        where = ("--url", self.url(name), "--key", self.key, "--ca-file", str(self.ca_file))
        return self.run("status", *where, *arguments)

    def processes(self, name: str) -> dict[str, dict[str, Any]]:
        found = json.loads(self.status(name, "--json"))["processes"]
        return {str(each["process"]): each for each in found}


def test_workers_of_two_gateways_with_a_private_ca_answer_each_other(
    tmp_path: Path, postgres_address: StoreAddress
) -> None:
    with House(tmp_path / "house") as house:
        cluster = TlsCluster(house, postgres_address.url)
        cluster.start("a", cluster.ca_file)
        house.children.wait_until(lambda: cluster.serves("a"), "the first serves", START_S)
        cluster.start("b", None)
        house.children.wait_until(lambda: cluster.serves("b"), "the second serves", START_S)
        cluster.agent()
        every = {f"{name}-{worker}" for name in GATEWAYS for worker in range(WORKERS)}

        def all_tell() -> bool:
            found = cluster.processes("a")
            return set(found) == every and all(each["up"] and each["agents"] == 1 for each in found.values())

        until("the first tells of all, and the agent is at each", all_tell, 90.0)
        for _ in range(3):  # the kernel gives each question to any worker of the other host
            found = cluster.processes("a")
            assert {each["process"]: each["up"] for each in found.values()} == dict.fromkeys(every, True)
            assert len({each["pid"] for each in found.values()}) == len(every)
            assert all(each["others"]["known_s"] < 30.0 for each in found.values())
        shown = cluster.status("a").splitlines()
        assert "OTHERS KNOWN" in shown[0]
        assert {line.split()[0] for line in shown[1 : 1 + len(every)]} == every
        assert all(line.endswith("s ago") for line in shown[1 : 1 + len(every)])

        blind = cluster.processes("b")
        assert {name for name, each in blind.items() if each["up"]} == {"b-0", "b-1"}
        for name in ("a-0", "a-1"):
            assert "its certificate is not trusted here" in blind[name]["why"]
