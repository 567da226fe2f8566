"""Checks of an agent's host. Registered as :class:`shared.process.checks.HostChecks`."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from agent.config.config import AgentConfig, EngineConfig, default_state_dir
from agent.config.sources import CONFIG_VARIABLE, PREFIX, SECRETS, load_with_sources
from agent.diagnosis.engine_probe import GENERATE_S, EngineProbe, listens
from agent.diagnosis.gpus import gpu_outcome
from agent.engines.finder import NO_ENGINE
from agent.engines.settings import origin_name
from shared.identity.certificates import read_kept
from shared.identity.keys import gateway_id, load_key, public_bytes
from shared.link.addresses import tunnel_url
from shared.link.membership import KEY_FILE, MEMBERSHIP_FILE
from shared.link.state_directory import MemberRecord, MembershipError
from shared.process.checks import (
    Check,
    CheckedHost,
    CheckOutcome,
    CheckState,
    failed,
    passed,
    skipped,
    warned,
)
from shared.process.connection_errors import gateway_of
from shared.process.descriptors import descriptors_outcome
from shared.process.settings import ConfigError, SettingsSources
from shared.process.shown_settings import ShownSetting, shown_settings
from shared.protocol.errors import TrunklineError

NOT_TOLD = "http://127.0.0.1:8700"
"""Stands for a gateway that only the running agent's command line names."""
JOIN = "To join: on the gateway, trunkline token create; here, trunkline agent --gateway URL --join TOKEN"
DAY_S = 86_400.0


def is_here(host: CheckedHost) -> bool:
    """An agent has joined on this host, or its settings are here."""
    if host.wanted or host.config is not None or host.state is not None or host.engines:
        return True
    if any(name.startswith(PREFIX) for name in os.environ):
        return True
    try:
        return (default_state_dir(os.environ) / MEMBERSHIP_FILE).exists()
    except OSError:
        return False


def checks(host: CheckedHost) -> Sequence[Check]:
    """What is looked at on an agent's host."""
    found = AgentHost(host)
    after = ("agent-configuration",)
    engines = ("engine-reachable",)
    return [
        Check("agent-configuration", found.configuration),
        Check("agent-identity", found.identity, after=after),
        Check("agent-known", found.known, after=("agent-identity",), limit_s=40.0),
        Check("agent-descriptors", lambda: descriptors_outcome("agent")),
        Check("gpu", found.gpu, limit_s=30.0),
        Check("engine-reachable", found.engines_reachable, after=after, limit_s=60.0),
        Check("engine-generates", found.engines_generate, after=engines, limit_s=GENERATE_S + 60.0),
    ]


def gateway_url(host: CheckedHost) -> str | None:
    """Where the agent's settings say that its gateway is, as clients write it: agents take ``wss://`` too."""
    found = AgentHost(host)
    try:
        settings = found.settings
    except ConfigError:
        return None
    return None if found.gateway_not_told else gateway_of(tunnel_url(settings.gateway))


def gateway_ca_file(host: CheckedHost) -> Path | None:
    """The certificates that the agent trusts for its gateway's TLS in place of the system's."""
    try:
        return AgentHost(host).settings.ca_file
    except ConfigError:
        return None


def settings_shown(host: CheckedHost) -> Sequence[ShownSetting]:
    """The agent's effective settings. Raises ConfigError."""
    found = AgentHost(host)
    settings, sources = found.loaded
    shown = shown_settings(settings, sources, secret=SECRETS)
    return [each for each in shown if not (found.gateway_not_told and each.path == "gateway")]


@dataclass
class AgentHost:
    """Looks at one agent's settings, state and engines."""

    host: CheckedHost = field(default_factory=CheckedHost)
    wall: Callable[[], float] = time.time
    gateway_not_told: bool = field(default=False, init=False)

    @property
    def settings(self) -> AgentConfig:
        """Raises ConfigError."""
        return self.loaded[0]

    @cached_property
    def loaded(self) -> tuple[AgentConfig, SettingsSources[AgentConfig]]:
        """The settings, and where each comes from. Raises ConfigError."""
        flags: dict[str, Any] = {} if self.host.state is None else {"state": self.host.state}
        if self.host.engines:
            flags["engine"] = [{"url": url} for url in self.host.engines]
        try:
            return load_with_sources(flags, self._file)
        except ConfigError as error:
            if not str(error).startswith("gateway is not given"):
                raise
            self.gateway_not_told = True
            return load_with_sources(flags | {"gateway": NOT_TOLD}, self._file)

    @property
    def _file(self) -> Path | None:
        named = os.environ.get(CONFIG_VARIABLE)
        return self.host.config or (Path(named) if named else None)

    def configuration(self) -> CheckOutcome:
        try:
            settings = self.settings
        except ConfigError as error:
            return failed(
                f"The agent's settings cannot be used: {str(error).rstrip('.')}.",
                "Correct what is named; `trunkline config --show --on agent` prints where each value "
                "comes from.",
            )
        if self.gateway_not_told:
            return passed(
                "The agent's settings are valid; they do not say where its gateway is, so its command "
                "line does."
            )
        return passed(f"The agent's settings are valid; its gateway is {settings.gateway}.")

    @cached_property
    def _record(self) -> MemberRecord | None:
        """Raises MembershipError."""
        return MemberRecord.read(self.settings.state / MEMBERSHIP_FILE)

    def identity(self) -> CheckOutcome:
        try:
            record = self._record
            if record is None:
                return failed(f"This host has not joined: {self.settings.state} holds no membership.", JOIN)
            key = load_key(self.settings.state / KEY_FILE)
            certificate = read_kept(record.certificate)
        except (MembershipError, TrunklineError) as error:
            return failed(f"The agent's identity cannot be used: {str(error).rstrip('.')}.", JOIN)
        if certificate.public_key != public_bytes(key):
            return failed(
                "The agent's certificate belongs to another key than the one in its state directory.",
                f"Bring the right {KEY_FILE} back from a backup, or remove both and join again. {JOIN}",
            )
        now_s, days = self.wall(), (certificate.not_after_s - self.wall()) / DAY_S
        facts = {
            "name": certificate.name,
            "gateway": gateway_id(record.fingerprint),
            "days_left": round(days, 1),
        }
        if now_s > certificate.not_after_s:
            return failed(
                f"The certificate of agent {certificate.name} ended {-days:.1f} days ago.",
                f"If this host's clock is right, the agent was away for too long and joins again. {JOIN}",
                **facts,
            )
        if now_s < certificate.not_before_s:
            return failed(
                f"The certificate of agent {certificate.name} is valid only later: this host's clock is "
                "behind.",
                "Set this host's clock by NTP (timedatectl set-ntp true).",
                **facts,
            )
        if certificate.needs_renewal(now_s):
            return warned(
                f"The certificate of agent {certificate.name} lasts {days:.1f} more days and was not "
                "renewed.",
                "A connected agent renews it by itself: see that it is connected (agent-known).",
                **facts,
            )
        return passed(
            f"This host is agent {certificate.name} of gateway {facts['gateway']}, for {days:.0f} more days.",
            **facts,
        )

    def known(self) -> CheckOutcome:
        record = self._record
        if record is None:
            return skipped("This host has not joined.")
        if self.host.agents is None:
            return skipped(
                "The gateway tells it for a key with the role viewer: give --key, or TRUNKLINE_KEY."
            )
        try:
            agents = self.host.agents()
        except LookupError as error:
            return skipped(str(error))
        found = next((each for each in agents if each.get("name") == record.name), None)
        if found is None:
            return failed(
                f"The gateway does not know agent {record.name}, or has revoked it.",
                f"trunkline agents list on the gateway says which. {JOIN}",
            )
        if not found.get("connected"):
            return warned(
                f"The gateway knows agent {record.name}, which is not connected.",
                "Start the agent; its log says why it cannot connect.",
            )
        if found.get("draining"):
            return warned(
                f"Agent {record.name} is connected, and gets no new work: it is drained.",
                f"trunkline drain {record.name} --undo lets it have work again.",
            )
        return passed(f"Agent {record.name} is connected to the gateway.")

    def gpu(self) -> CheckOutcome:
        return gpu_outcome()

    # --- Engines ---

    def engines_reachable(self) -> CheckOutcome:
        return self._each_engine(EngineProbe.reachable)

    def engines_generate(self) -> CheckOutcome:
        return self._each_engine(EngineProbe.generates)

    def _each_engine(self, look: Callable[[EngineProbe], CheckOutcome]) -> CheckOutcome:
        probes = list(self._probes())
        own = [engine.name for engine in self.settings.engines if engine.url is None]
        if not probes:
            if own:
                return skipped(f"The agent starts {', '.join(own)} itself; real-request asks them.")
            if served := self._served():
                return skipped(
                    "The settings name no engine, so the agent's command line does: the gateway says that it "
                    f"serves {', '.join(served)}. --engine URL looks at one."
                )
            return failed("No engine is here.", f"{NO_ENGINE[0].upper()}{NO_ENGINE[1:]}.")
        outcomes = {probe.name: look(probe) for probe in probes}
        for state in (CheckState.FAILED, CheckState.WARNING, CheckState.OK, CheckState.SKIPPED):
            named = [each for each in outcomes.values() if each.state is state]
            if named:
                words = " ".join(each.words for each in named)
                facts = {name: dict(each.facts) for name, each in outcomes.items()}
                return CheckOutcome(state, words, named[0].remedy, {"engines": facts})
        raise AssertionError("an outcome has a state")

    def _served(self) -> list[str]:
        """The models that the gateway has loaded at this agent; none where it cannot be asked."""
        try:
            record = self._record
            known = () if record is None or self.host.agents is None else self.host.agents()
        except (LookupError, MembershipError):
            return []
        return sorted(
            {
                deployment["model"]
                for agent in known
                if record is not None and agent["name"] == record.name and agent.get("connected")
                for deployment in agent.get("deployments", ())
                if deployment["status"] == "loaded"
            }
        )[:20]

    def _probes(self) -> Iterator[EngineProbe]:
        for engine in self.settings.engines:
            if engine.url is not None:
                yield _probe_of(engine, engine.url, engine.name)
        if self.settings.looks_for_engines:
            for port in self.settings.usual_ports:
                url = f"http://127.0.0.1:{port}"
                probe = _probe_of(self.settings.found_engine, url, origin_name(url))
                if listens(port) and probe.lists_models():
                    yield probe


def _probe_of(engine: EngineConfig, url: str, name: str) -> EngineProbe:
    key = None if engine.api_key is None else engine.api_key.get_secret_value()
    return EngineProbe(name, url, engine.protocol, engine.models, engine.health, key)
