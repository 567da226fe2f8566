"""Set-ups that are broken, each in one way, for ``trunkline doctor`` to find."""

import os
import resource
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent.diagnosis import gpus
from gateway.storage import Store
from shared.process.ports import free_port
from tests.integration.conftest import Site
from tests.support import nginx, programs
from tests.support.nginx import UPGRADES, nginx_before
from tests.support.stand_in_gateway import READY, StandIn, certificate_for, stand_in

KEY = "sk-tl-of-a-stand-in"


@dataclass
class Place:
    """Where a set-up is made."""

    fixtures: pytest.FixtureRequest
    directory: Path
    patch: pytest.MonkeyPatch

    @property
    def site(self) -> Site:
        """A gateway, an agent and an engine that work; started when a set-up needs them."""
        found = self.fixtures.getfixturevalue("site")
        assert isinstance(found, Site)
        return found

    @property
    def key(self) -> str:
        """With the role viewer there."""
        return str(self.fixtures.getfixturevalue("viewer"))


Broken = Callable[[Place], AbstractContextManager[Sequence[str]]]
"""Makes a set-up and gives the arguments with which the doctor looks at it."""

SETUPS: dict[str, tuple[Broken, Mapping[str, str], str]] = {}
"""In plain words: how it is made, the states of checks, and words of a remedy."""


def setup(
    words: str, remedy: str, **states: str
) -> Callable[[Callable[[Place], Iterator[Sequence[str]]]], None]:
    """Names a set-up. ``states`` are those of checks, with underscores for hyphens."""

    def add(make: Callable[[Place], Iterator[Sequence[str]]]) -> None:
        expected = {name.replace("_", "-"): state for name, state in states.items()}
        SETUPS[words] = contextmanager(make), expected, remedy

    return add


# --- A proxy in front ---


def _nginx(place: Place, check: str, **configuration: str) -> AbstractContextManager[Sequence[str]]:
    @contextmanager
    def made() -> Iterator[Sequence[str]]:
        if reason := programs.install(nginx.PACKAGES):
            pytest.skip(reason)
        gateway = place.site.gateway
        with nginx_before(gateway.port, place.directory, **configuration) as port:
            through = ("--through", f"http://127.0.0.1:{port}", "--url", gateway.url, "--key", place.key)
            yield *through, "--on", "way", "--only", check, "--idle", "2.5", "--body", "2000000"

    return made()


@setup("nginx holds streams back", "proxy_buffering off", sse_buffering="failed", key="ok")
def _buffering(place: Place) -> Iterator[Sequence[str]]:
    said = "proxy_buffering on; proxy_ignore_headers X-Accel-Buffering;"  # and HTTP/1.0, which is its default
    with _nginx(place, "sse-buffering", location=said) as arguments:
        yield arguments


@setup("nginx takes short bodies only", "client_max_body_size 520m", body_limit="failed", key="ok")
def _short_bodies(place: Place) -> Iterator[Sequence[str]]:
    with _nginx(place, "body-limit", server="client_max_body_size 1m;") as arguments:
        yield arguments


@setup("nginx passes no upgrade on", "proxy_set_header Upgrade", websocket_upgrade="failed")
def _no_upgrade(place: Place) -> Iterator[Sequence[str]]:
    with _nginx(place, "websocket-upgrade", location="proxy_buffering off;") as arguments:
        yield arguments


@setup("nginx waits a second for an answer", "proxy_read_timeout 3700s", idle_cut="failed", key="ok")
def _impatient(place: Place) -> Iterator[Sequence[str]]:
    with _nginx(place, "idle-cut", location=f"{UPGRADES} proxy_read_timeout 1s;") as arguments:
        yield arguments


@setup("nginx before a gateway that is gone", "have the proxy pass all paths", gateway_answers="failed")
def _gone(place: Place) -> Iterator[Sequence[str]]:
    if reason := programs.install(nginx.PACKAGES):
        pytest.skip(reason)
    with nginx_before(free_port(), place.directory) as port:
        yield "--through", f"http://127.0.0.1:{port}", "--on", "way", "--only", "gateway-answers"


@setup("the proxy of the environment is not there", "NO_PROXY", proxy_environment="failed", dns="skipped")
def _proxy_gone(place: Place) -> Iterator[Sequence[str]]:
    place.patch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{free_port()}")
    yield "--url", "https://llm.example.com", "--on", "way"


# --- Names, addresses and TLS ---


@setup("a name that nobody knows", "Correct the name", dns="failed", connect="skipped", clock="skipped")
def _no_name(place: Place) -> Iterator[Sequence[str]]:
    yield "--url", "https://no-such-gateway.invalid", "--on", "way"


@setup("a name that leads to the wrong host", "correct the DNS record", dns="ok", connect="failed")
def _wrong_host(place: Place) -> Iterator[Sequence[str]]:
    yield "--url", f"http://localhost:{free_port()}", "--on", "way"


def _tls(place: Place, *more: str, trusted: bool = True, **certificate: Any) -> Iterator[Sequence[str]]:
    files = certificate_for(place.directory, **certificate)
    with stand_in(StandIn(), files) as there:
        trust = ("--ca-file", str(files[0])) if trusted else ()
        yield "--url", f"https://localhost:{there.port}", "--on", "way", *trust, *more


@setup("a certificate that has ended", "Renew", tls_expiry="failed", tls_chain="failed", key="skipped")
def _ended(place: Place) -> Iterator[Sequence[str]]:
    yield from _tls(place, to_days=-1)


@setup("a self-signed certificate that nobody trusts", "--ca-file", tls_chain="failed", tls_expiry="ok")
def _untrusted(place: Place) -> Iterator[Sequence[str]]:
    yield from _tls(place, trusted=False)


@setup("a certificate for another name", "for this name", tls_chain="failed", tls_expiry="ok")
def _other_name(place: Place) -> Iterator[Sequence[str]]:
    yield from _tls(place, host="other.example.com")


@setup("a certificate that ends this week", "Renew", tls_expiry="warning", tls_chain="ok", clock="ok")
def _ends_soon(place: Place) -> Iterator[Sequence[str]]:
    yield from _tls(place, "--only", "tls-expiry", "--only", "clock", to_days=5)


@setup("https at a port without TLS", "install a certificate", tls_chain="failed", connect="ok")
def _no_tls(place: Place) -> Iterator[Sequence[str]]:
    with stand_in(StandIn()) as there:
        yield "--url", f"https://127.0.0.1:{there.port}", "--on", "way"


# --- What answers ---


def _stand_in(there: StandIn, *arguments: str) -> Iterator[Sequence[str]]:
    with stand_in(there):
        yield "--url", f"http://127.0.0.1:{there.port}", "--key", KEY, "--on", "way", *arguments


@setup("a clock that is five minutes behind", "NTP", clock="failed", gateway_answers="ok")
def _clock(place: Place) -> Iterator[Sequence[str]]:
    yield from _stand_in(StandIn(ahead_s=300), "--only", "clock")


@setup("another program at the gateway's address", "Correct the URL", gateway_answers="failed", key="skipped")
def _other_program(place: Place) -> Iterator[Sequence[str]]:
    yield from _stand_in(StandIn({"/readyz": b"<html>It works!</html>"}))


@setup(
    "a gateway of an earlier version",
    "Update the older one",
    versions="warning",
    sse_buffering="skipped",
    idle_cut="skipped",
    body_limit="skipped",
)
def _earlier(place: Place) -> Iterator[Sequence[str]]:
    only = ("versions", "sse-buffering", "idle-cut", "body-limit")
    yield from _stand_in(StandIn(), *(word for each in only for word in ("--only", each)))


@setup("a key that was revoked", "key list", key="failed", models="skipped", sse_buffering="skipped")
def _revoked_key(place: Place) -> Iterator[Sequence[str]]:
    yield "--url", place.site.gateway.url, "--key", "sk-tl-0000000000000000000000000000", "--on", "way"


@setup("a gateway without models", "trunkline status", models="failed", real_request="skipped")
def _no_models(place: Place) -> Iterator[Sequence[str]]:
    yield from _stand_in(StandIn({**READY, "/v1/models": {"data": []}}), "--only", "real-request")


# --- A gateway's host ---


@setup("a setting that does not exist", "config --show", configuration="failed", ports="skipped")
def _no_setting(place: Place) -> Iterator[Sequence[str]]:
    file = place.directory / "gateway.toml"
    file.write_text('lissten = "127.0.0.1:8700"\n')
    yield "--on", "gateway", "--config", str(file)


def _host(place: Place, **settings: str) -> Sequence[str]:
    file, state = place.directory / "gateway.toml", place.directory / "state"
    state.mkdir(mode=0o700)
    listen = f'listen = "127.0.0.1:{free_port()}"'
    file.write_text("\n".join([settings.pop("listen", listen), *settings.values()]))
    return "--on", "gateway", "--config", str(file), "--state", str(state)


@setup("a full disk", "Make room", disk="failed", configuration="ok")
def _full(place: Place) -> Iterator[Sequence[str]]:
    usage = shutil.disk_usage(place.directory)
    place.patch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=4096))
    yield _host(place)


@setup("a state directory of another user", "chown", state="failed", database="skipped")
def _others(place: Place) -> Iterator[Sequence[str]]:
    arguments, ask = _host(place), os.access
    state = place.directory / "state"
    place.patch.setattr(os, "access", lambda path, mode: path != state and ask(path, mode))
    yield arguments


@setup("a damaged database", "restores its backup", database="failed", state="ok")
def _damaged(place: Place) -> Iterator[Sequence[str]]:
    arguments = _host(place)
    (place.directory / "state" / "gateway.db").write_bytes(b"SQLite format 3\0" + b"\xff" * 8192)
    yield arguments


@setup("a PostgreSQL server that is away", "postgresql.md", database="failed", state="ok")
def _away(place: Place) -> Iterator[Sequence[str]]:
    url = f"postgresql://trunkline@127.0.0.1:{free_port()}/trunkline"
    yield _host(place, store=f'[store]\nurl = "{url}"')


@setup("a port that another program has", "ss -ltnp", ports="failed", configuration="ok")
def _taken(place: Place) -> Iterator[Sequence[str]]:
    with stand_in(StandIn({})) as there:
        yield _host(place, listen=f'listen = "127.0.0.1:{there.port}"')


@setup("a key that is not the certificate's", "its own key", tls_files="failed", configuration="ok")
def _other_key(place: Place) -> Iterator[Sequence[str]]:
    (place.directory / "other").mkdir()
    certificate, _ = certificate_for(place.directory)
    _, key = certificate_for(place.directory / "other")
    yield _host(place, tls=f'[tls]\ncert = "{certificate}"\nkey = "{key}"')


@setup("few descriptors", "LimitNOFILE", descriptors="failed", agent_descriptors="failed")
def _few(place: Place) -> Iterator[Sequence[str]]:
    place.patch.setattr(resource, "getrlimit", lambda kind: (256, 256))
    yield "--on", "gateway", "--on", "agent", "--only", "descriptors", "--only", "agent-descriptors"


# --- An agent's host ---


def _engine(there: StandIn) -> Iterator[Sequence[str]]:
    with stand_in(there):
        url = f"http://127.0.0.1:{there.port}"
        yield "--on", "agent", "--engine", url, "--only", "engine-generates"


MODELS = {"/v1/models": {"data": [{"id": "m"}]}}


@setup(
    "an engine that lists models and does not generate",
    "GPU's state",
    engine_reachable="ok",
    engine_generates="failed",
)
def _lists_only(place: Place) -> Iterator[Sequence[str]]:
    yield from _engine(StandIn(MODELS | {"/v1/chat/completions": 500}))


@setup("an engine whose answer is empty", "GPU's state", engine_reachable="ok", engine_generates="failed")
def _empty(place: Place) -> Iterator[Sequence[str]]:
    yield from _engine(StandIn(MODELS | {"/v1/chat/completions": {"choices": []}}))


@setup("an engine without models", "Load a model", engine_reachable="failed", engine_generates="skipped")
def _without_models(place: Place) -> Iterator[Sequence[str]]:
    yield from _engine(StandIn({"/v1/models": {"data": []}}))


@setup("an engine that is not there", "Start it", engine_reachable="failed", engine_generates="skipped")
def _no_engine(place: Place) -> Iterator[Sequence[str]]:
    yield "--on", "agent", "--engine", f"http://127.0.0.1:{free_port()}", "--only", "engine-generates"


@setup(
    "a host that has not joined",
    "To join: on the gateway, trunkline",
    agent_identity="failed",
    agent_known="skipped",
)
def _not_joined(place: Place) -> Iterator[Sequence[str]]:
    yield "--on", "agent", "--agent-state", str(place.directory), "--only", "agent-known"


@setup(
    "an agent that was revoked",
    "says which. To join: on the gateway,",
    agent_identity="ok",
    agent_known="failed",
)
def _revoked(place: Place) -> Iterator[Sequence[str]]:
    site = place.site
    agent = site.house.agent(site.gateway, site.engine.url, name="revoked")
    site.house.children.wait_until(lambda: "connected" in agent.log.read_text(), "it is connected", 60.0)
    with Store.open(site.gateway.state) as store:
        store.agents.revoke("revoked", "", time.time())
    site.house.children.wait_until(lambda: agent.ended(0.0) is not None, "it has ended", 60.0)
    state = site.house.directory / "revoked-state"
    asked = ("--url", site.gateway.url, "--key", place.key, "--agent-state", str(state))
    yield *asked, "--on", "agent", "--only", "agent-known"
    site.house.children.stop(agent)


@setup("a driver of another version than its library", "nvidia-smi", gpu="failed")
def _driver(place: Place) -> Iterator[Sequence[str]]:
    place.patch.setattr(gpus, "DRIVER_FILES", (str(place.directory),))
    yield "--on", "agent", "--only", "gpu"


# --- The tests ---
