"""How long the gateway's event loop is held at a time, in CPU, by what grows with a fleet or with its keys.

A whole gateway runs in this process, on the event loop it always has; its agents, which only shake hands and
say what they serve, run in another one. A turn is what the loop does between two looks at its sockets: a
callback that asks to be called again at the next turn takes the CPU time of the loop's thread between.
"""

import argparse
import asyncio
import gc
import json
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from secrets import token_bytes

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gateway.app.app import Gateway
from gateway.domain.scopes import AdminRole
from gateway.observability.logging import configure
from gateway.runtime.config import Settings
from gateway.runtime.garbage import young_collections_only
from gateway.runtime.stop_signals import StopSignals
from gateway.storage import Store
from shared.handshake import AgentHandshake
from shared.identity import JoinToken
from shared.process.event_loop import event_loop_factory
from shared.process.startup import raise_file_limit, without_collection
from shared.protocol.errors import TrunklineError
from shared.protocol.messages import AgentState, AgentStatus, DeploymentState, DeploymentStatus
from shared.tunnel import DialledTunnel, dial
from tests.bench.scale import make_keys
from tests.support.tunnels import Recorder

MODELS = 3
"""That each agent serves."""

SHARED = 100
"""Agents so many places apart serve the same models."""

KEYS = 10_000
_JOIN_AT_ONCE = 32
_AGAIN_S = 0.5
_CALM_S = 1.0
QUIET_S = 16.0
"""Longer than what is done most seldom by itself: noting who is here."""


@dataclass(frozen=True, slots=True)
class Turns:
    """One row: what was done, and what the loop's turns were meanwhile."""

    what: str
    longest_s: float
    """CPU of the loop's thread."""
    collected_s: float
    """CPU of the longest collection of garbage, in whatever thread; it may be a part of the turn."""
    stalled_s: float
    """The longest turn by the clock: other processes and threads of ours count, too."""
    lasted_s: float

    def __str__(self) -> str:
        return (
            f"{self.what:44s} longest turn {self.longest_s * 1e3:7.1f} ms CPU (garbage "
            f"{self.collected_s * 1e3:6.1f}), {self.stalled_s * 1e3:7.1f} ms by the clock; "
            f"all of it {self.lasted_s:6.2f} s"
        )


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one run."""

    rows: Sequence[Turns]

    def __str__(self) -> str:
        return "\n".join(map(str, self.rows))

    def to_json(self) -> str:
        return json.dumps([asdict(row) for row in self.rows], indent=1)


class Probe:
    """Looks at every turn of the running loop while it is entered; then the loop never sleeps."""

    def __init__(self, what: str, rows: list[Turns]) -> None:
        self._what = what
        self._rows = rows
        self._loop = asyncio.get_running_loop()
        self._on = False
        self._cpu_s = self._clock_s = self._began_s = 0.0
        self.longest_s = self.stalled_s = 0.0
        self._collecting_s = self.collected_s = 0.0

    def __enter__(self) -> "Probe":
        self._on = True
        gc.callbacks.append(self._collect)
        self._cpu_s, self._clock_s = time.thread_time(), time.perf_counter()
        self._began_s = self._clock_s
        self._loop.call_soon(self._look)
        return self

    def __exit__(self, *_: object) -> None:
        self._on = False
        gc.callbacks.remove(self._collect)
        lasted_s = self._clock_s - self._began_s
        self._rows.append(Turns(self._what, self.longest_s, self.collected_s, self.stalled_s, lasted_s))

    def _collect(self, phase: str, info: object) -> None:
        if phase == "start":
            self._collecting_s = time.thread_time()
        else:
            self.collected_s = max(self.collected_s, time.thread_time() - self._collecting_s)

    def _look(self) -> None:
        cpu_s, clock_s = time.thread_time(), time.perf_counter()
        self.longest_s = max(self.longest_s, cpu_s - self._cpu_s)
        self.stalled_s = max(self.stalled_s, clock_s - self._clock_s)
        self._cpu_s, self._clock_s = cpu_s, clock_s
        if self._on:
            self._loop.call_soon(self._look)


class FullCollections:
    """Counts the collections of the oldest generation while it is entered, whether somebody looks at turns or
    not."""

    def __init__(self, rows: list[Turns]) -> None:
        self._rows = rows
        self._times = 0
        self._began = (0.0, 0.0)
        self._longest_s = self._stalled_s = self._lasted_s = 0.0

    def __enter__(self) -> None:
        gc.callbacks.append(self._collect)

    def __exit__(self, *_: object) -> None:
        gc.callbacks.remove(self._collect)
        what = f"{self._times} collections of the oldest generation in all"
        self._rows.append(Turns(what, self._longest_s, self._longest_s, self._stalled_s, self._lasted_s))

    def _collect(self, phase: str, info: Mapping[str, int]) -> None:
        if info["generation"] < 2:
            return
        now = (time.thread_time(), time.perf_counter())
        if phase == "start":
            self._began = now
            return
        self._times += 1
        self._longest_s = max(self._longest_s, now[0] - self._began[0])
        self._stalled_s = max(self._stalled_s, now[1] - self._began[1])
        self._lasted_s += now[1] - self._began[1]


# --- The agents' process ---


class _Agents:
    def __init__(self, url: str, token: JoinToken, count: int) -> None:
        self._url = url
        self._token = token
        self._keys = {f"a{number}": Ed25519PrivateKey.generate() for number in range(count)}
        self._certificates: dict[str, bytes] = {}
        self._tunnels: dict[str, DialledTunnel] = {}

    async def join(self) -> None:
        """So many at once as trouble nobody."""
        permits = asyncio.Semaphore(_JOIN_AT_ONCE)

        async def one(name: str) -> None:
            async with permits:
                await self._dial(name)

        await asyncio.gather(*map(one, self._keys))

    async def dial(self) -> None:
        """All at once."""
        await asyncio.gather(*map(self._dial, self._keys))

    async def drop(self) -> None:
        for tunnel in self._tunnels.values():
            tunnel.abort()
        self._tunnels.clear()

    async def _dial(self, name: str) -> None:
        while True:
            try:
                tunnel = await self._once(name)
                break
            except TrunklineError:
                await asyncio.sleep(_AGAIN_S)
        if tunnel.welcome.certificate is not None:
            self._certificates[name] = tunnel.welcome.certificate.der
        self._tunnels[name] = tunnel
        first = int(name[1:]) % SHARED * MODELS
        models = [f"m{first + number}" for number in range(MODELS)]
        tunnel.endpoint.send_slots(dict.fromkeys(models, 8))
        states = tuple(
            DeploymentState(model, model, routes=("chat",), status=DeploymentStatus.LOADED, slots=8)
            for model in models
        )
        tunnel.endpoint.send_state(AgentState(AgentStatus.READY, states))

    async def _once(self, name: str) -> DialledTunnel:
        certificate = self._certificates.get(name)
        handshake = AgentHandshake(
            self._keys[name],
            name,
            token_bytes(32),
            certificate=certificate,
            join_token=None if certificate else self._token,
            pinned_fingerprint=self._token.fingerprint,
        )
        clock = asyncio.get_running_loop().time
        return await dial(self._url, handshake=handshake, listener=Recorder(), clock=clock)


async def _agents(url: str, token: str, count: int) -> None:
    agents = _Agents(url, JoinToken.decode(token), count)
    loop = asyncio.get_running_loop()
    while command := (await loop.run_in_executor(None, sys.stdin.readline)).strip():
        await getattr(agents, command)()
        sys.stdout.write("done\n")
        sys.stdout.flush()


# --- The gateway's process ---


class _Site:
    def __init__(self, gateway: Gateway, store: Store, url: str, key: str) -> None:
        self.gateway = gateway
        self.store = store
        self.url = url
        self.key = key
        self.rows: list[Turns] = []

    def probe(self, what: str) -> Probe:
        return Probe(what, self.rows)

    async def get(self, path: str) -> None:
        """Asks as a client does."""
        request = urllib.request.Request(self.url + path, headers={"authorization": f"Bearer {self.key}"})

        def fetch() -> None:
            with urllib.request.urlopen(request) as answer:
                answer.read()

        await asyncio.to_thread(fetch)


async def _crowd(site: _Site, count: int, quiet_s: float) -> None:
    _, text = site.store.tokens.create(3600, count, ("*",), {}, time.time())
    url = site.url.replace("http", "ws") + "/tunnel"
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.bench.turns", url, text, str(count)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )

    async def tell(word: str) -> None:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(f"{word}\n".encode())
        assert await child.stdout.readline() == b"done\n"

    with site.probe(f"{count} agents join, {_JOIN_AT_ONCE} at a time"):
        await tell("join")
    await asyncio.sleep(_CALM_S)
    with site.probe("every tunnel is lost"):
        await tell("drop")
        await asyncio.sleep(_CALM_S)
    with site.probe(f"{count} agents come back at once"):
        await tell("dial")
    await asyncio.sleep(_CALM_S)
    await _calm(site, quiet_s)
    assert child.stdin is not None
    child.stdin.close()
    await child.wait()


async def _calm(site: _Site, quiet_s: float) -> None:
    with site.probe("nothing but what goes on by itself"):
        await asyncio.sleep(quiet_s)
    for path in ("/metrics", "/metrics", "/v1/models", "/admin/agents", "/admin/models", "/admin/queue"):
        with site.probe(f"GET {path}"):
            await site.get(path)


async def _keys(site: _Site, count: int) -> None:
    await asyncio.to_thread(make_keys, site.store.state_dir, count)
    with site.probe(f"the first request after {count} new keys"):
        await site.get("/v1/models")
    with site.probe("GET /admin/keys"):
        await site.get("/admin/keys")
    site.store.keys.create("one more", "acme", time.time())
    with site.probe("the first request after one new key"):
        await site.get("/v1/models")


async def _run(state: Path, agents: int, keys: int, quiet_s: float) -> Figures:
    settings = Settings.model_validate(
        {"listen": "127.0.0.1:0", "agents": {"max_strangers": 4096}, "behind_tls_terminator": True}
    )
    with Store.open(state, serve=True) as store:
        key = store.keys.create("bench", "default", time.time(), role=AdminRole.ADMIN)
        gateway, stop, urls = Gateway(settings, store), StopSignals(), list[str]()
        listening = asyncio.Event()

        async def announce(url: str) -> None:
            urls.append(url)
            listening.set()

        running = asyncio.create_task(gateway.run(stop, announce))
        await listening.wait()
        site = _Site(gateway, store, urls[0], key)
        with FullCollections(site.rows):
            if agents:
                await _crowd(site, agents, quiet_s)
            if keys:
                await _keys(site, keys)
            await asyncio.sleep(2 * _CALM_S)
        with site.probe("a complete collection, which growth would bring"):
            gc.collect()
            await asyncio.sleep(0)
        stop.receive()
        stop.receive()
        await running
        return Figures(site.rows)


def run(state: Path, agents: int, keys: int, quiet_s: float = QUIET_S) -> Figures:
    """With so many agents and so many new keys, each of which may be none; what goes on by itself is looked
    at for ``quiet_s``."""
    raise_file_limit()
    with without_collection():  # as where a gateway is started
        pass
    configure("error", "json")
    with young_collections_only(), asyncio.Runner(loop_factory=event_loop_factory()) as runner:
        return runner.run(_run(state, agents, keys, quiet_s))


def main() -> None:
    """The agents, in a process of their own."""
    parser = argparse.ArgumentParser(prog="turns")
    parser.add_argument("url")
    parser.add_argument("token")
    parser.add_argument("agents", type=int)
    arguments = parser.parse_args()
    raise_file_limit()
    with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
        runner.run(_agents(arguments.url, arguments.token, arguments.agents))


if __name__ == "__main__":
    main()
