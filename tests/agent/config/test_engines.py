"""Engines that the agent starts, as they are written down."""

import re
from math import inf
from pathlib import Path

import pytest

from agent.app import make_backend, make_backends
from agent.capacity.load_times import LoadTimes
from agent.config.config import AgentConfig
from agent.config.sources import load
from agent.engines.comfyui.backend import ComfyUIBackend
from agent.engines.command.engine import CommandBackend
from agent.engines.http.kserve import KServeBackend
from agent.engines.http.model_servers import TensorFlowServingBackend, TorchServeBackend
from agent.engines.managed import LoadAttempt
from shared.process.settings import ConfigError
from shared.protocol.limits import MODEL_NAME_CHARS

GIB = 1024**3


def settings(directory: Path, text: str) -> AgentConfig:
    path = directory / "agent.toml"
    path.write_text(f'gateway = "https://x"\n{text}\n')
    return load({}, path)


FULL = """
[models]
memory = "80 GiB"

[[engine]]
command = "vllm serve 'some model' --port {port}"
models = ["qwen"]
memory = "14 GiB"
environment = { CUDA_VISIBLE_DEVICES = "0" }
idle_timeout_s = 0
stop_s = 30
version = "2"
"""


def test_a_command_is_split_as_a_shell_would(tmp_path: Path) -> None:
    config = settings(tmp_path, FULL)
    assert config.models.memory == 80 * GIB
    (engine,) = config.engines
    started = engine.command_settings()
    assert started.command == ("vllm", "serve", "some model", "--port", "{port}")
    assert (started.port, started.ready_s, started.stop_s) == (0, 600.0, 30.0)
    assert started.environment == {"CUDA_VISIBLE_DEVICES": "0"}
    assert "CUDA" not in repr(started)  # values may be secrets
    assert (engine.name, engine.place, engine.version) == ("vllm", "vllm", "2")
    backend = make_backend(engine, LoadTimes())
    assert isinstance(backend, CommandBackend)
    assert [(d.id, d.version) for d in backend.deployments()] == [("vllm/qwen", "2")]


@pytest.mark.parametrize(
    ("kind", "keys", "expected"),
    [
        ("command", "", LoadAttempt(at_start=False, managed=True, idle_timeout_s=600.0)),
        ("command", "idle_timeout_s = 0", LoadAttempt(at_start=False, managed=True)),
        ("command", 'load = "at-start"', LoadAttempt(at_start=True, managed=False)),
        ("torch", "", LoadAttempt(at_start=True, managed=False)),
        ("torch", "memory = 5\nload_s = 9", LoadAttempt(memory_bytes=5, load_s=9.0)),
        ("torch", 'load = "on-demand"', LoadAttempt(at_start=False, managed=True, idle_timeout_s=600.0)),
        ("torch", "idle_timeout_s = 60", LoadAttempt(at_start=True, managed=True, idle_timeout_s=60.0)),
    ],
)
def test_when_an_engine_is_loaded(tmp_path: Path, kind: str, keys: str, expected: LoadAttempt) -> None:
    start = 'torch = "demo"' if kind == "torch" else 'command = "e {port}"\nmodels = ["m"]'
    (engine,) = settings(tmp_path, f"[[engine]]\n{start}\n{keys}").engines
    assert engine.loading() == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('command = "e {port}"', "needs models"),
        ('command = "e"\nmodels = ["m"]', "write {port} where"),
        ('command = ""\nmodels = ["m"]', "begins with a program"),
        ('command = "e \'x"\nmodels = ["m"]', "No closing quotation"),
        ('command = ["e", "{port}"]\nmodels = ["a b"]', "'a b' is no name"),
        ('command = "e {port}"\nurl = "http://x"', "one of url, command, torch and python"),
        ('command = "e {port}"\nmodels = ["m"]\nmemory = "lots"', "memory"),
        ('command = "e {port}"\nmodels = ["m"]\nmemory = 0', "memory"),
        ('command = "e {port}"\nmodels = ["m"]\nport = 70000', "port"),
        ('command = "e {port}"\nmodels = ["m"]\nload = "later"', "load"),
        ('command = "e {port}"\nmodels = ["m"]\nenvironment = { "A=B" = "c" }', "no name of a variable"),
        ('url = "http://x"\nmemory = "1 GiB"', "memory is for engines that the agent starts itself"),
        ('url = "http://x"\nload = "at-start"', "load is for engines that the agent starts itself"),
        ('torch = "demo"\nport = 1', "port is for engines that the agent starts itself"),
        ('url = "http://x"\nhung_s = 5', "hung_s is for engines that the agent starts itself"),
        ('torch = "demo"\nrestart = "x"', "restart is for engines with a url"),
        ('url = "http://x"\nrestart = ""', "begins with a program"),
        (
            'torch = "demo"\nmemory = "9 GiB"\n[models]\nmemory = "8 GiB"',
            "torch: memory is more than there is",
        ),
        (
            'torch = "demo"\nmemory = "5 GiB"\n[[engine]]\ntorch = "demo"\nmemory = "5 GiB"\n'
            '[models]\nmemory = "8 GiB"',
            "at start need more memory",
        ),
    ],
)
def test_what_cannot_be_is_said(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        settings(tmp_path, f"[[engine]]\n{text}")


def test_a_command_may_hold_a_key_and_is_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(tmp_path, '[[engine]]\ncommand = ["e", "--api-key=secret", 7]')
    assert "command" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_the_examples_of_the_documentation_are_what_the_agent_takes(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "docs" / "engines.md").read_text("utf-8")
    kserve, named, example, hangs = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    (server,) = settings(tmp_path, kserve).engines
    assert (server.protocol, server.models, server.slots) == ("kserve", ("iris",), 16)
    half, managed, resnet = settings(tmp_path, named).engines
    assert [each.protocol for each in (half, managed, resnet)] == ["tensorflow", "torchserve", "torchserve"]
    assert managed.settings().management == managed.management == "http://127.0.0.1:8081"
    config = settings(tmp_path, re.sub(r'torch = ".*?"', 'torch = "demo"', example))
    assert [engine.name for engine in config.engines] == ["vllm", "llama-server", "torch"]
    assert all(engine.on_demand for engine in config.engines)
    (restarted,) = settings(tmp_path, hangs).engines
    assert restarted.restart == ("systemctl", "restart", "vllm")


def test_the_room_for_models_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRUNKLINE_AGENT_MODELS", '{"memory": "24 GiB"}')
    assert load({"gateway": "https://x"}, None).models.memory == 24 * GIB


def test_a_port_of_ones_own_needs_no_place_in_the_command(tmp_path: Path) -> None:
    text = '[[engine]]\ncommand = ["/opt/My Engine/run it"]\nport = 8000\nmodels = ["m"]'
    (engine,) = settings(tmp_path, text).engines
    assert (engine.command_settings().port, engine.name) == (8000, "engine")


def test_torchserves_models_are_listed_at_its_usual_port_unless_they_are_named(tmp_path: Path) -> None:
    def of(more: str) -> str | None:
        written = f'[[engine]]\nurl = "torchserve:http://[::1]:8080"\n{more}'
        (engine,) = settings(tmp_path, written).engines
        return engine.settings().management

    assert of("") == "http://[::1]:8081"
    assert of('models = ["half"]') is None
    assert of('management = "http://manage:9081"') == "http://manage:9081"
    assert of('management = "http://manage:9081"\nmodels = ["half"]') == "http://manage:9081"
    with pytest.raises(ConfigError, match="management is for engines with protocol"):
        settings(tmp_path, '[[engine]]\nurl = "http://h:1"\nmanagement = "http://h:2"')


@pytest.mark.parametrize(
    ("protocol", "backend"), [("tensorflow", TensorFlowServingBackend), ("torchserve", TorchServeBackend)]
)
def test_servers_that_list_no_models_need_their_names(
    protocol: str, backend: type[object], tmp_path: Path
) -> None:
    written = f'[[engine]]\nurl = "{protocol}:http://127.0.0.1:8501"'
    if protocol == "tensorflow":
        with pytest.raises(ConfigError, match="needs models"):
            settings(tmp_path, written)
    (engine,) = settings(tmp_path, f'{written}\nmodels = ["half"]').engines
    assert (engine.url, engine.protocol, engine.models) == ("http://127.0.0.1:8501", protocol, ("half",))
    assert isinstance(make_backend(engine, LoadTimes(tmp_path / "times.json")), backend)


def test_an_engine_of_kserves_protocol_is_named_by_its_url_or_by_its_key(tmp_path: Path) -> None:
    for text in (
        'url = "kserve:http://127.0.0.1:8000"',
        'url = "http://127.0.0.1:8000"\nprotocol = "kserve"',
    ):
        (engine,) = settings(tmp_path, f"[[engine]]\n{text}").engines
        assert (engine.url, engine.protocol, engine.name) == (
            "http://127.0.0.1:8000",
            "kserve",
            "127.0.0.1-8000",
        )
        assert engine.settings().loads
        assert isinstance(make_backend(engine, LoadTimes(tmp_path / "times.json")), KServeBackend)
    (pinned,) = settings(tmp_path, '[[engine]]\nurl = "kserve:http://h:1"\nload = "at-start"').engines
    assert not pinned.settings().loads


@pytest.mark.parametrize(
    "text",
    [
        'url = "kserve:http://h:1"\nmodels = ["m"]\nhealth = "/x"',
        'torch = "demo"\nprotocol = "kserve"',
        'url = "http://h:1"\nload = "at-start"',
        'url = "kserve:http://h:1"\nmemory = "1 GiB"',
        'url = "http://h:1"\nprotocol = "grpc"',
    ],
)
def test_what_does_not_go_with_a_protocol_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError):
        settings(tmp_path, f"[[engine]]\n{text}")


def test_when_an_engine_hangs_and_what_restarts_it(tmp_path: Path) -> None:
    text = """[[engine]]
url = "http://x"
restart = "systemctl restart 'my engine'"
hung_s = 5
ready_s = 90

[[engine]]
url = "http://y"

[[engine]]
torch = "demo"
hung_s = 0
"""
    restarted, plain, started = settings(tmp_path, text).engines
    assert restarted.settings().restart == ("systemctl", "restart", "my engine")
    assert (restarted.settings().hung_s, restarted.settings().ready_s) == (5.0, 90.0)
    assert (plain.settings().restart, plain.restarts().hung_s) == ((), 60.0)
    assert started.restarts().hung_s == inf


def test_comfyui_takes_a_directory_of_workflows(tmp_path: Path) -> None:
    text = f'[[engine]]\nurl = "comfyui:http://127.0.0.1:8188"\nworkflows = "{tmp_path}"'
    (engine,) = settings(tmp_path, text).engines
    assert (engine.url, engine.protocol) == ("http://127.0.0.1:8188", "comfyui")
    made = engine.settings()
    assert (made.workflows, made.output_bytes, made.loads) == (tmp_path, 4 * GIB, False)
    assert isinstance(make_backend(engine, LoadTimes(tmp_path / "times.json")), ComfyUIBackend)
    times = LoadTimes(tmp_path / "times.json")
    assert [each.name for each in make_backends(engine, times)] == ["127.0.0.1-8188", "127.0.0.1-8188.paths"]
    (pinned,) = settings(tmp_path, text + '\nmodels = ["painting"]').engines
    assert [each.name for each in make_backends(pinned, times)] == ["127.0.0.1-8188"]
    (larger,) = settings(tmp_path, text + '\noutput = "8 GiB"').engines
    assert larger.settings().output_bytes == 8 * GIB


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('url = "comfyui:http://h:1"\nworkflows = "/no/such/directory"', "no such directory"),
        ('url = "comfyui:http://h:1"\nhealth = "/x"\nmodels = ["m"]', "without health"),
        ('url = "http://h:1"\noutput = "1 MiB"', "comfyui"),
        ('url = "comfyui:http://h:1"\nload = "at-start"', "starts itself"),
    ],
)
def test_what_comfyui_cannot_have_is_told(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        settings(tmp_path, f"[[engine]]\n{text}")


def test_several_devices_are_as_many_engines(tmp_path: Path) -> None:
    config = settings(tmp_path, '[[engine]]\ntorch = "demo"\ndevice = "cuda:0,cuda:1"\nslots = 4')
    assert [(e.name, e.device, e.slots, e.used_gpus) for e in config.engines] == [
        ("torch-1", "cuda:0", 4, (0,)),
        ("torch-2", "cuda:1", 4, (1,)),
    ]
    named = settings(tmp_path, '[[engine]]\ntorch = "demo"\nname = "big"\ndevice = "cuda:2,cpu"')
    assert [(e.name, e.used_gpus) for e in named.engines] == [("big-1", (2,)), ("big-2", ())]
    by_flags = load({"gateway": "https://x", "engine": [{"torch": "demo", "device": "cuda:0,cuda:1"}]}, None)
    assert [engine.device for engine in by_flags.engines] == ["cuda:0", "cuda:1"]


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "0", "cuda:0,", "cuda:0,cuda:0", "CPU"])
def test_what_is_no_device_is_refused(tmp_path: Path, device: str) -> None:
    with pytest.raises(ConfigError, match="a device is auto, cpu, cuda or cuda:NUMBER"):
        settings(tmp_path, f'[[engine]]\ntorch = "demo"\ndevice = "{device}"')


@pytest.mark.parametrize(
    ("keys", "gpus"),
    [
        ('url = "http://x"', ()),
        ('url = "http://x"\ngpus = [3, 1]', (3, 1)),
        ('command = "e {port}"\nmodels = ["m"]', ()),
        ('command = "e {port}"\nmodels = ["m"]\nenvironment = { CUDA_VISIBLE_DEVICES = "1, 2" }', (1, 2)),
        ('command = "e {port}"\nmodels = ["m"]\nenvironment = { CUDA_VISIBLE_DEVICES = "GPU-1f" }', ()),
        ('torch = "demo"', ()),
        ('torch = "demo"\ndevice = "cuda"', (0,)),
        ('torch = "demo"\ndevice = "cpu"', ()),
        ('python = "m:C"\ndevices = [0, 2]', (0, 2)),
        ('python = "m:C"\ndevices = "cpu"', ()),
    ],
)
def test_which_gpus_an_engine_uses(tmp_path: Path, keys: str, gpus: tuple[int, ...]) -> None:
    (engine,) = settings(tmp_path, f"[[engine]]\n{keys}").engines
    assert engine.used_gpus == gpus
    assert (engine.loading().gpus, engine.settings().gpus) == (gpus, gpus)


def test_a_version_that_no_gateway_takes_is_refused(tmp_path: Path) -> None:
    longest = "v" * MODEL_NAME_CHARS
    (engine,) = settings(tmp_path, f'[[engine]]\nurl = "http://x"\nversion = "{longest}"').engines
    assert engine.version == longest
    with pytest.raises(ConfigError, match=r"version.*at most 256 characters"):
        settings(tmp_path, f'[[engine]]\nurl = "http://x"\nversion = "{longest}v"')


def test_a_key_with_a_line_end_behind_it_is_sent_without(tmp_path: Path) -> None:
    text = 'engine_key = "a\\n"\n[[engine]]\nurl = "http://x"\n'
    (common,) = settings(tmp_path, text).engines
    assert common.settings().api_key == "a"
    own = 'url = "torchserve:http://x"\napi_key = " b\\r\\n"\nmanagement_key = "c\\n"'
    (engine,) = settings(tmp_path, f"[[engine]]\n{own}").engines
    assert (engine.settings().api_key, engine.settings().management_key) == ("b", "c")


@pytest.mark.parametrize("name", ["api_key", "management_key"])
def test_a_key_that_would_end_its_header_field_is_refused_and_never_repeated(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(ConfigError, match=f"{name}: it holds line ends") as caught:
        settings(tmp_path, f'[[engine]]\nurl = "torchserve:http://x"\n{name} = "a\\nx-evil: 1"')
    assert "evil" not in str(caught.value)


@pytest.mark.parametrize("path", ["/" + "x" * 5000, "a\\u0000b", "~nobody-of-that-name/w", "/nowhere"])
def test_a_directory_of_workflows_that_cannot_be_is_told(tmp_path: Path, path: str) -> None:
    with pytest.raises(ConfigError, match=r"engine\[0\].workflows = .*: there is no such directory"):
        settings(tmp_path, f'[[engine]]\nurl = "comfyui:http://x"\nworkflows = "{path}"')
