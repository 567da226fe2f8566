"""What can be set of the agent, with the default of each and its bounds.

:func:`agent.config.sources.load` reads them: each is a key of the file, and a variable TRUNKLINE_AGENT_<KEY>.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    model_validator,
)
from pydantic_settings import NoDecode

from agent.config.engines import EngineConfig as EngineConfig
from agent.config.engines import ModelsConfig
from agent.config.values import Continues, FilePath, Key, Seconds, Slots, check_name
from agent.engines.http.kind import USUAL_PORTS
from shared.identity import JoinToken
from shared.link.addresses import check_peer_address, dial_settings, is_loopback, tunnel_url
from shared.link.dialer import DialSettings
from shared.process.startup import home_directory
from shared.process.tracing.settings import OtelTable
from shared.protocol.errors import JoinTokenInvalid

_ANY_HOST = ("0.0.0.0", "::")  # noqa: S104 (nothing is bound)
"""Connections to these reach this host as those to loopback do."""


def _check_gateway(url: str) -> str:
    tunnel_url(url)
    return url


def _check_join(token: SecretStr) -> SecretStr:
    try:
        JoinToken.decode(token.get_secret_value())
    except JoinTokenInvalid as error:
        raise ValueError(str(error)) from None
    return token


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _split_engines(value: Any) -> Any:
    return [{"url": part} for part in _split(value)] if isinstance(value, str) else value


def _split_labels(value: Any) -> Any:
    return _pairs(value, "a label is written KEY=VALUE")


def _split_continues(value: Any) -> Any:
    return {} if value == "none" else _pairs(value, "it is written ROUTE=WAY")


class AgentConfig(BaseModel):
    """All of the agent's settings, checked and frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    gateway: Annotated[str, AfterValidator(_check_gateway)]
    """``https://HOST[:PORT]``; ``http://`` on loopback only."""
    join: Annotated[SecretStr, AfterValidator(_check_join)] | None = None
    """The join token; needed the first time only."""
    state: FilePath = Field(default_factory=lambda: default_state_dir(os.environ))
    name: Annotated[str, AfterValidator(check_name)] | None = None
    engine: Annotated[tuple[EngineConfig, ...], NoDecode, BeforeValidator(_split_engines)] = ()
    models: ModelsConfig = Field(default_factory=ModelsConfig)
    engine_key: Key | None = None
    """The API key of engines that have none of their own here."""
    slots: Slots | None = None
    """For engines that have none of their own here."""
    continues: Annotated[Continues | None, NoDecode, BeforeValidator(_split_continues)] = None
    """For engines that have none of their own here. As text: ``ROUTE=WAY,…``, or ``none``."""
    labels: Annotated[dict[str, str], NoDecode, BeforeValidator(_split_labels)] = Field(default_factory=dict)
    """Labels of this host. A gateway uses the labels of the agent's identity, and logs those that differ."""
    find_engines: bool | None = None
    """Look for engines on the usual local ports. Default: when no engine is named."""
    drain_s: Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)] = 30.0
    """How long running requests may take to finish when the agent is told to stop."""
    dial_timeout_s: Seconds = 10.0
    ca_file: FilePath | None = None
    """Certificates to trust for the gateway's TLS, in place of the system's."""
    client_cert: FilePath | None = None
    """PEM, for a gateway whose TLS asks for one; read at the start. It does not prove who the agent is."""
    client_key: FilePath | None = None
    """Its key; None if it is in the same file."""
    otel: OtelTable = OtelTable()
    """Spans of requests that the gateway traces; the agent begins no traces of its own."""
    log_format: Literal["auto", "text", "json"] = "auto"
    """auto: text on a terminal, else JSON."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @model_validator(mode="after")
    def _check_engines(self) -> Self:
        names = [engine.name for engine in self.engines]
        if len(set(names)) < len(names):
            raise ValueError(f"two engines have the same name: {', '.join(names)}")
        if (memory := self.models.memory) is None:
            return self
        for engine in self.engines:
            if (engine.memory or 0) > memory:
                raise ValueError(f"engine {engine.name}: memory is more than there is for models")
        if sum(e.memory or 0 for e in self.engines if not e.on_demand) > memory:
            raise ValueError("the engines that are loaded at start need more memory than models.memory")
        return self

    @property
    def engines(self) -> tuple[EngineConfig, ...]:
        """The engines with everything filled in: names, and what is common to all."""
        each_engine = [(each, given) for given in self.engine for each in given.for_each_device]
        kinds = [engine.name or engine.kind for engine, _ in each_engine]
        filled = []
        for place, ((engine, given), kind) in enumerate(zip(each_engine, kinds, strict=True)):
            name = kind if kinds.count(kind) == 1 else f"{kind}-{kinds[: place + 1].count(kind)}"
            common = {
                "name": given.name if given.name and engine is given else name,
                "slots": engine.slots or self.slots,
                "api_key": engine.api_key or self.engine_key,
                "continues": self.continues if engine.continues is None else engine.continues,
            }
            filled.append(engine.model_copy(update=common))
        return tuple(filled)

    @property
    def looks_for_engines(self) -> bool:
        return not self.engine if self.find_engines is None else self.find_engines

    @property
    def usual_ports(self) -> tuple[int, ...]:
        """Local ports to look for engines at: the usual ones but those of engines that are named."""
        urls = [urlsplit(engine.url) for engine in self.engine if engine.url is not None]
        named = {url.port for url in urls if is_loopback(url.hostname or "") or url.hostname in _ANY_HOST}
        named |= {engine.port for engine in self.engine if engine.command is not None}
        return tuple(port for port in USUAL_PORTS if port not in named)

    @property
    def found_engine(self) -> EngineConfig:
        """What is known beforehand of an engine that is found by itself."""
        return EngineConfig(
            url="http://127.0.0.1", slots=self.slots, api_key=self.engine_key, continues=self.continues
        )

    def dial_settings(self, gateway: str | None = None) -> DialSettings:
        """How ``gateway``, by default the one of the settings, is dialled. Raises :class:`ConfigError` when
        ``ca_file`` or ``client_cert`` cannot be used, and ValueError for a URL that cannot be dialled."""
        return dial_settings(
            self.gateway if gateway is None else gateway,
            os.environ,
            ca_file=self.ca_file,
            client_cert=self.client_cert,
            client_key=self.client_key,
            timeout_s=self.dial_timeout_s,
        )

    def peer_dial_settings(self, address: str) -> DialSettings:
        """How a process of the gateway is dialled at an address of its own. Raises as :meth:`dial_settings`
        and :func:`shared.link.addresses.check_peer_address`."""
        check_peer_address(address, self.gateway)
        return self.dial_settings(address)


def _pairs(value: Any, rule: str) -> Any:
    """``KEY=VALUE,…`` or a list of ``KEY=VALUE`` as a dict; anything else as it is."""
    if isinstance(value, str):
        value = _split(value)
    if not isinstance(value, list | tuple):
        return value
    pairs = [str(part).partition("=") for part in value]
    for key, mark, text in pairs:
        if not key or not mark:
            raise ValueError(f"{rule}, not {key + mark + text!r}")
    return {key: text for key, _, text in pairs}


def default_state_dir(environ: Mapping[str, str]) -> Path:
    """Where an agent keeps its key unless ``state`` is set."""
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        return Path("/var/lib/trunkline/agent")
    base = environ.get("XDG_STATE_HOME")
    return (Path(base) if base else home_directory() / ".local" / "state") / "trunkline" / "agent"
