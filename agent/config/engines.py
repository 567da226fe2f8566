"""One ``[[engine]]`` of the agent's settings, and the ``[models]`` they share memory by."""

from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ByteSize,
    ConfigDict,
    Field,
    model_validator,
)

from agent.config.values import (
    Command,
    Continues,
    Devices,
    Directory,
    Environment,
    GpuIndex,
    HealthPath,
    Key,
    Memory,
    Seconds,
    Slots,
    TorchDevice,
    TorchModel,
    check_name,
)
from agent.engines.command.engine import PORT, CommandSettings
from agent.engines.http.models import MODELS
from agent.engines.managed import LoadAttempt
from agent.engines.model_names import is_nameable
from agent.engines.process import RestartPolicy
from agent.engines.settings import (
    MANAGEMENT_PORT,
    OUTPUT_BYTES,
    EngineSettings,
    EngineTimeouts,
    at_port,
    base_url,
    origin_name,
)
from agent.serve.backend import PythonSettings
from agent.serve.locate import check_spec
from agent.serve.model import name_of_class
from shared.identity import is_name
from shared.protocol import limits

IDLE_TIMEOUT_S = 600.0
"""The default idle timeout of engines that are loaded on demand."""

_OF_COMMANDS = ("port", "environment", "ready_s", "stop_s")
_OF_RESTARTS = ("ready_s", "hung_s")
"""Also of engines with a ``restart``."""
_PROTOCOLS = ("kserve", "comfyui", "tensorflow", "torchserve")
"""What may stand before a URL, with a colon."""
_LISTS_NONE = ("tensorflow",)
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_OF_LOADING = ("load", "load_s", "memory", "idle_timeout_s")
"""Of engines that the agent starts; the first also of those that load their models by themselves."""


class ModelsConfig(BaseModel):
    """``[models]``: the host's memory for models."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    memory: Memory | None = None
    """For all engines that the agent starts. Default: the memory of all GPUs; without a GPU, no bound."""


class EngineConfig(BaseModel):
    """One ``[[engine]]``: its ``url``, the ``command`` that starts it, or the model that the agent serves, as
    ``torch`` or as ``python``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: Annotated[str, AfterValidator(base_url)] | None = None
    torch: TorchModel | None = None
    """A Hugging Face model directory, or ``demo``."""
    python: Annotated[str, AfterValidator(check_spec)] | None = None
    """``module:Class``, a subclass of :class:`agent.serve.Model`; the working directory comes first."""
    protocol: Literal["openai", "kserve", "comfyui", "tensorflow", "torchserve"] = "openai"
    """What the engine at ``url`` speaks: OpenAI's API, KServe's Open Inference Protocol (v2), ComfyUI's, or
    that of TensorFlow Serving or TorchServe. A URL may also be written ``kserve:http://…``."""
    workflows: Directory | None = None
    """For ``comfyui``: a directory with workflows, each a file ``NAME.json``."""
    output: Annotated[ByteSize, Field(gt=0, le=2**40)] = ByteSize(OUTPUT_BYTES)
    """For ``comfyui``: the longest file of an answer. Bytes, or text such as ``2 GiB``."""
    management: Annotated[str, AfterValidator(base_url)] | None = None
    """For ``torchserve``: the URL of its management API, which lists its models. Default: port 8081 of the
    engine's host, if it has no ``models``; else none."""
    management_key: Key | None = None
    """For ``torchserve``: the key of its management API, where that wants one."""
    command: Command | None = None
    """Program and arguments, as a list or as text in a shell's form. ``{port}`` stands for the port."""
    name: Annotated[str, AfterValidator(lambda name: check_name(name) if name else "")] = ""
    slots: Slots | None = None
    api_key: Key | None = None
    models: Annotated[tuple[str, ...], Field(max_length=MODELS)] = ()
    health: HealthPath | None = None
    """For a ``url`` without a list of models: a path that answers below 400 while it serves ``models``."""
    version: Annotated[str, Field(max_length=limits.MODEL_NAME_CHARS)] = ""
    labels: dict[str, str] = Field(default_factory=dict)
    """Kept beside the engine; no gateway is told of them yet."""
    continues: Continues | None = None
    """Default: what is known of its kind."""
    stateful: bool | None = None
    """Whether its own paths need the same engine each time. Default: as known of its kind, else yes."""
    device: TorchDevice = "auto"
    """For ``torch``: auto, cpu, cuda or cuda:1; several with commas are as many engines."""
    gpus: Annotated[tuple[GpuIndex, ...], Field(max_length=limits.GPUS)] | None = None
    """The host's GPUs that it uses. Default: as ``environment``, ``device`` or ``devices`` say."""
    devices: Devices = ("auto",)
    """For ``python``: ``0,1`` for these GPUs, or names such as cpu; auto: the first GPU, or the CPU."""
    connect_s: Seconds = 5.0
    first_byte_s: Seconds = 600.0
    idle_s: Seconds = 300.0
    refresh_s: Seconds = 5.0
    port: Annotated[int, Field(ge=0, le=65_535)] = 0
    """For ``command``: where the engine listens, on loopback; 0: a free port, which ``{port}`` tells it."""
    environment: Environment = Field(default_factory=dict)
    """For ``command``: added to the agent's own, without its settings."""
    ready_s: Seconds = 600.0
    """For ``command``: how long it may take to answer."""
    restart: Command | None = None
    """For ``url``: program and arguments that restart the engine, which the agent runs when it hangs."""
    hung_s: Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)] = 60.0
    """For engines that the agent starts, or has a ``restart`` for: without any answer for so long the engine
    hangs and is restarted; 0: never."""
    stop_s: Annotated[float, Field(ge=0, le=300, allow_inf_nan=False)] = 10.0
    """For ``command``: how long it may take to end once asked (SIGTERM); then it is killed."""
    load: Literal["on-demand", "at-start"] | None = None
    """When an engine that the agent starts is loaded. Default: ``command`` on demand, ``torch`` at start."""
    memory: Memory | None = None
    """Taken while it is loaded. Default: for ``torch`` a fifth more than its weights' files, else all."""
    load_s: Seconds | None = None
    """How long loading takes, for as long as the agent has not measured it."""
    idle_timeout_s: Annotated[float, Field(ge=0, le=31_536_000, allow_inf_nan=False)] | None = None
    """Unloaded after so long without a request; 0: never. Default: 600 on demand, never at start."""

    @model_validator(mode="before")
    @classmethod
    def _split_protocol(cls, given: Any) -> Any:
        url = given.get("url") if isinstance(given, dict) else None
        if isinstance(url, str):
            protocol, _, rest = url.partition(":")
            if protocol in _PROTOCOLS:
                return {**given, "url": rest, "protocol": protocol}
        return given

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if [self.url, self.torch, self.command, self.python].count(None) != 3:
            raise ValueError("an engine has one of url, command, torch and python")
        if self.python is None and "devices" in self.model_fields_set:
            raise ValueError("devices are for engines with python")
        of_commands = () if self.command is not None else _OF_COMMANDS
        of_loading = () if self.url is None else (*_OF_LOADING[self._loads_by_itself :], "hung_s")
        allowed = () if self.restart is None else _OF_RESTARTS
        if self.restart is not None and self.url is None:
            raise ValueError("restart is for engines with a url; the agent starts the others itself")
        for key in sorted(self.model_fields_set.intersection((*of_commands, *of_loading)) - {*allowed}):
            raise ValueError(f"{key} is for engines that the agent starts itself")
        if self.health is not None and self.url is None:
            raise ValueError("health is for engines with a url")
        if self.health is not None and not self.models:
            raise ValueError("health stands in for a list of models: name them, with models = […]")
        if (self.command or self.python) is not None and self.on_demand and not self.models:
            raise ValueError("an engine that is loaded on demand needs models: the names that it serves")
        bad = [model for model in self.models if not is_nameable(model)]
        if bad and (self.health is not None or self.command is not None):
            raise ValueError(
                f"models: {bad[0]!r} is no name: it must not be empty, hold blanks or be too long"
            )
        texts = (*self.command, *self.environment.values()) if self.command is not None else ()
        if texts and not self.port and not any(PORT in text for text in texts):
            raise ValueError(f"write {PORT} where the command takes its port, or say port = …")
        return self

    @model_validator(mode="after")
    def _check_protocol(self) -> Self:
        if self.protocol != "openai" and (self.url is None or self.health is not None):
            raise ValueError(f"protocol = '{self.protocol}' is for engines with a url, and without health")
        if self.protocol in _LISTS_NONE and not self.models:
            raise ValueError(f"protocol = '{self.protocol}' needs models: such servers do not list theirs")
        if self.protocol != "torchserve" and (self.management or self.management_key) is not None:
            raise ValueError("management is for engines with protocol = 'torchserve'")
        if self.protocol != "comfyui" and self.model_fields_set.intersection(("workflows", "output")):
            raise ValueError("workflows and output are for engines with protocol = 'comfyui'")
        return self

    @property
    def _loads_by_itself(self) -> bool:
        return self.protocol == "kserve"

    @property
    def _management(self) -> str | None:
        if self.protocol != "torchserve" or self.models:
            return self.management
        return self.management or at_port(self.url or "", MANAGEMENT_PORT)

    @property
    def on_demand(self) -> bool:
        starts = self.command is None and not self._loads_by_itself
        return (self.load or ("at-start" if starts else "on-demand")) == "on-demand"

    @property
    def for_each_device(self) -> "tuple[EngineConfig, ...]":
        """This engine, or with several devices one for each."""
        devices = self.device.split(",")
        if len(devices) == 1:
            return (self,)
        return tuple(self.model_copy(update={"device": device}) for device in devices)

    @property
    def used_gpus(self) -> tuple[int, ...]:
        """Indices of the GPUs that it uses, as far as it is known; empty: it is not."""
        if self.gpus is not None:
            return self.gpus
        words: Sequence[str] = self.environment.get(_VISIBLE, "").split(",")
        if self.torch is not None:
            words = ["0"] if self.device == "cuda" else [self.device.removeprefix("cuda:")]
        elif self.python is not None:
            words = [device.removeprefix("cuda:") for device in self.devices]
        stripped = [word.strip() for word in words]
        return tuple(map(int, stripped)) if all(word.isdecimal() for word in stripped) else ()

    @property
    def kind(self) -> str:
        """What it is called when it has no name: one that runs already by where it does."""
        if self.torch is not None:
            return "torch"
        if self.python is not None:
            name = name_of_class(self.python.partition(":")[2])
            return name if is_name(name) else "python"
        if self.url is not None:
            return origin_name(self.url)
        program = "" if self.command is None else Path(self.command[0]).name.lower()
        return program if is_name(program) else "engine"

    @property
    def place(self) -> str:
        """What it is, for the log; of a command the program alone, as arguments may hold keys."""
        return self.url or self.torch or self.python or (self.command or ("",))[0]

    def settings(self) -> EngineSettings:
        """For :class:`agent.engines.http.openai.OpenAIHTTPBackend`."""
        return EngineSettings(
            url=self.url or "http://127.0.0.1",
            name=self.name,
            api_key=None if self.api_key is None else self.api_key.get_secret_value(),
            slots=self.slots,
            models=self.models,
            health=self.health,
            protocol=self.protocol,
            workflows=self.workflows,
            output_bytes=self.output,
            management=self._management,
            management_key=None if self.management_key is None else self.management_key.get_secret_value(),
            loads=self.protocol == "kserve" and self.on_demand,
            version=self.version,
            continues=self.continues,
            stateful=self.stateful,
            restart=self.restart or (),
            hung_s=self.hung_s or inf,
            ready_s=self.ready_s,
            gpus=self.used_gpus,
            refresh_s=self.refresh_s,
            timeouts=EngineTimeouts(
                connect_s=self.connect_s, first_byte_s=self.first_byte_s, idle_s=self.idle_s
            ),
        )

    def command_settings(self) -> CommandSettings:
        """For :class:`agent.engines.command.engine.CommandBackend`."""
        assert self.command is not None
        return CommandSettings(
            command=self.command,
            port=self.port,
            environment=self.environment,
            ready_s=self.ready_s,
            stop_s=self.stop_s,
        )

    def restarts(self) -> RestartPolicy:
        """For every engine that the agent starts."""
        return RestartPolicy(hung_s=self.hung_s or inf)

    def python_settings(self) -> PythonSettings:
        """For :class:`agent.serve.backend.PythonBackend`."""
        assert self.python is not None
        return PythonSettings(spec=self.python, devices=self.devices)

    def loading(self) -> LoadAttempt:
        """An engine that is loaded at start is never unloaded, unless it has an idle timeout."""
        timeout_s = self.idle_timeout_s
        if timeout_s is None:
            timeout_s = IDLE_TIMEOUT_S if self.on_demand else 0.0
        return LoadAttempt(
            at_start=not self.on_demand,
            managed=self.on_demand or timeout_s > 0,
            memory_bytes=self.memory,
            load_s=self.load_s,
            idle_timeout_s=timeout_s or None,
            gpus=self.used_gpus,
        )
