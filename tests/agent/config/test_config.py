"""Settings: where they come from, which wins, and what is said of wrong ones."""

import ssl
from pathlib import Path
from typing import Any

import pytest

from agent.config.config import AgentConfig, default_state_dir
from agent.config.sources import load
from shared.identity import is_name
from shared.process.settings import ConfigError
from tests.support.identities import TOKEN
from tests.support.tls import make_certificate

HERE = {"gateway": "http://localhost:8080"}


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.startswith("TRUNKLINE_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


def write(directory: Path, text: str) -> Path:
    path = directory / "agent.toml"
    path.write_text(text)
    return path


def mistakes(flags: dict[str, Any], file: Path | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load(flags, file)
    return str(caught.value)


def test_a_flag_wins_over_the_environment_over_the_file_over_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load(HERE, None).drain_s == 30.0
    file = write(tmp_path, 'gateway = "https://file"\ndrain_s = 1\n')
    assert load({}, file).drain_s == 1.0
    monkeypatch.setenv("TRUNKLINE_AGENT_DRAIN_S", "2")
    assert load({}, file).drain_s == 2.0
    assert load({"drain_s": 3.0}, file).drain_s == 3.0
    assert load({}, file).gateway == "https://file"


def test_everything_can_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "GATEWAY": "https://gw",
        "JOIN": TOKEN.encode(),
        "ENGINE": "http://a:1, http://b:2",
        "ENGINE_KEY": "secret",
        "LABELS": "region=eu,zone=a",
        "SLOTS": "5",
        "STATE": str(tmp_path),
        "NAME": "",
    }.items():
        monkeypatch.setenv(f"TRUNKLINE_AGENT_{name}", value)
    config = load({}, None)
    assert [(e.name, e.url, e.slots) for e in config.engines] == [
        ("a-1", "http://a:1", 5),
        ("b-2", "http://b:2", 5),
    ]
    assert config.engines[0].settings().api_key == "secret"
    assert config.labels == {"region": "eu", "zone": "a"}
    assert config.state == tmp_path
    assert config.name is None
    assert TOKEN.encode() not in repr(config)


def test_the_file_can_be_named_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRUNKLINE_AGENT_CONFIG", str(write(tmp_path, 'gateway = "https://file"')))
    assert load({}, None).gateway == "https://file"


def test_a_file_describes_several_engines(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        """
gateway = "https://gw.example.com"
slots = 9
[labels]
region = "eu"
[[engine]]
url = "http://localhost:8000/v1"
name = "vllm"
slots = 64
api_key = "k"
models = ["a", "b"]
first_byte_s = 30
[[engine]]
torch = "demo"
[[engine]]
url = "http://localhost:8001"
labels = { size = "small" }
""",
    )
    config = load({}, file)
    assert [(e.name, e.slots) for e in config.engines] == [("vllm", 64), ("torch", 9), ("localhost-8001", 9)]
    settings = config.engines[0].settings()
    assert (settings.url, settings.api_key, settings.models) == ("http://localhost:8000", "k", ("a", "b"))
    assert (settings.timeouts.first_byte_s, settings.timeouts.idle_s) == (30, 300)
    assert not config.looks_for_engines
    assert load(HERE, None).looks_for_engines


def test_how_engines_go_on_with_answers_can_be_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(
        tmp_path,
        """
[[engine]]
url = "http://a:1"
continues = {chat = "final_message", completions = "prompt"}
[[engine]]
url = "http://b:2"
continues = {}
[[engine]]
url = "http://c:3"
""",
    )
    given = {"chat": "final_message", "completions": "prompt"}
    assert [e.settings().continues for e in load(HERE, file).engines] == [given, {}, None]
    monkeypatch.setenv("TRUNKLINE_AGENT_CONTINUES", "chat=prefill,messages=prefill")
    config = load(HERE, file)
    ways = {"chat": "prefill", "messages": "prefill"}
    assert [e.settings().continues for e in config.engines] == [given, {}, ways]
    assert config.found_engine.settings().continues == ways
    monkeypatch.setenv("TRUNKLINE_AGENT_CONTINUES", "none")
    assert load(HERE, None).found_engine.settings().continues == {}


def test_engines_given_by_flag_replace_those_of_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, '[[engine]]\nurl = "http://a:1"\n')
    config = load({**HERE, "engine": [{"torch": "demo"}]}, file)
    assert [engine.torch for engine in config.engines] == ["demo"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("drain_s = -3", ":2: drain_s = -3: should be greater than or equal to 0"),
        ("colour = 1", ":2: colour: there is no such key"),
        ('continues = {chat = "prompt"}', ":2: continues: chat = 'prompt': must be final_message or prefill"),
        (
            '[[engine]]\nurl = "http://a"\ncontinues = {audio = "prompt"}',
            ":4: engine[0].continues: 'audio' is no route whose answers go on; "
            "they are chat, completions, responses, messages",
        ),
        (
            '[[engine]]\nurl = "http://a:1"\n\n[[engine]]\nurl = "http://a:2"\nslots = 0',
            ":7: engine[1].slots = 0: ",
        ),
        ('[[engine]]\nurl = "ftp://a"', ":3: engine[0].url = 'ftp://a': 'ftp://a' is not an engine's URL"),
        (
            '[[engine]]\ntorch = "/nowhere"',
            ":3: engine[0].torch = '/nowhere': a model is 'demo' or a directory",
        ),
        ('[[engine]]\nname = "x"', ":2: engine[0]: an engine has one of url, command, torch and python"),
        (
            '[[engine]]\nurl = "http://a"\napi_key = 5',
            ":4: engine[0].api_key: should be a valid string",
        ),
        ('[[engine]]\nurl = "http://a"\nnick = 5', ":4: engine[0].nick: there is no such key"),
        ('[[engine]]\nurl = "http://a"\nname = "A b"', ":4: engine[0].name = 'A b': a name is"),
        ("[labels]\nregion = 3", ":3: labels.region = 3: should be a valid string"),
        ('log_level = "loud"', ":2: log_level = 'loud': should be 'debug'"),
    ],
)
def test_a_mistake_in_the_file_is_named_with_its_line(tmp_path: Path, text: str, expected: str) -> None:
    file = write(tmp_path, f'gateway = "https://x"\n{text}\n')
    assert expected in mistakes({}, file)
    assert str(file) in mistakes({}, file)


def test_every_mistake_is_named(tmp_path: Path) -> None:
    file = write(tmp_path, "drain_s = 0\ndial_timeout_s = 0\nslots = 0\n")
    assert mistakes({}, file).count("\n") == 2


@pytest.mark.parametrize("text", ["= 1", "\x00", 'a = "', "a = 1\na = 2"])
def test_a_file_that_is_no_toml_is_named(tmp_path: Path, text: str) -> None:
    assert "agent.toml" in mistakes({}, write(tmp_path, text))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert "cannot be read" in mistakes({}, tmp_path / "none.toml")


def test_mistakes_in_flags_and_variables_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert mistakes({}).startswith("gateway is not given: use --gateway, TRUNKLINE_AGENT_GATEWAY")
    assert mistakes({**HERE, "slots": 0}).startswith("--slots 0: ")
    assert mistakes({**HERE, "labels": ["x"]}) == "--label: a label is written KEY=VALUE, not 'x'"
    monkeypatch.setenv("TRUNKLINE_AGENT_DRAIN_S", "soon")
    assert mistakes(HERE).startswith("TRUNKLINE_AGENT_DRAIN_S 'soon': ")
    monkeypatch.setenv("TRUNKLINE_AGENT_GATWAY", "https://x")
    assert mistakes(HERE).startswith("TRUNKLINE_AGENT_GATWAY: no such setting")


@pytest.mark.parametrize(
    "flags",
    [
        {"gateway": "https://me:secret@gw.example"},
        {"gateway": "https://gw", "engine": [{"url": "http://me:secret@e:1"}]},
        {"gateway": "https://gw", "engine": [{"url": "ftp://me:secret@e:1"}]},
        {"gateway": "https://gw", "engine": "http://e:1,ftp://me:secret@e:1"},
    ],
)
def test_a_password_in_a_url_is_refused_and_never_repeated(flags: dict[str, Any]) -> None:
    said = mistakes(flags)
    assert "://…@" in said
    assert "secret" not in said


def test_a_wrong_join_token_is_refused_and_never_repeated() -> None:
    text = TOKEN.encode()[:-4]
    said = mistakes({**HERE, "join": text})
    assert said.startswith("--join: the join token")
    assert text not in said


@pytest.mark.parametrize("torch", ["", "x" * 5000, "a\0b", "~nobody-of-that-name/model"])
def test_a_model_directory_that_cannot_be_is_told(torch: str) -> None:
    assert "there is no such directory" in mistakes({**HERE, "engine": [{"torch": torch}]})


@pytest.mark.parametrize("name", ["state", "ca_file", "client_cert", "client_key"])
def test_a_path_with_a_zero_byte_is_refused(tmp_path: Path, name: str) -> None:
    file = write(tmp_path, f'gateway = "https://x"\n{name} = "a\\u0000b"\n')
    assert f":2: {name} = " in mistakes({}, file)


def test_an_engine_whose_host_can_have_no_address_is_refused() -> None:
    engine = {"url": "http://b\xfccher..example:1"}
    assert "its host is no name" in mistakes({**HERE, "engine": [engine]})
    assert load({**HERE, "engine": [{"url": "http://b\xfccher.example:1"}]}, None).engines


def test_two_engines_of_one_name_are_refused() -> None:
    engines = [{"url": "http://a", "name": "x"}, {"url": "http://b", "name": "x"}]
    assert "same name" in mistakes({**HERE, "engine": engines})


@pytest.mark.parametrize(
    "gateway",
    [
        "gw.example.com",
        "ftp://x",
        "https://",
        "https://u:p@x",
        "https://x?y",
        "https://x:99999",
        "http://10.0.0.1:8080",
        "http://gw.example.com",
        "ws://gw.example.com",
        "http://localhost.example.com",
    ],
)
def test_other_urls_are_refused_and_plain_http_beyond_loopback(gateway: str) -> None:
    assert "--gateway" in mistakes({"gateway": gateway})


@pytest.mark.parametrize(
    ("gateway", "instead"),
    [
        ("https://gw.example.com/v1", "write https://gw.example.com"),
        ("http://127.0.0.1:8700/v1/", "write http://127.0.0.1:8700"),
        ("https://gw.example.com/llm/v1/chat/completions", "write https://gw.example.com/llm"),
    ],
)
def test_the_clients_url_is_refused_with_the_agents(gateway: str, instead: str) -> None:
    assert mistakes({"gateway": gateway}).endswith(instead)


@pytest.mark.parametrize(
    ("urls", "names"),
    [
        (["http://127.0.0.1:8000"], ["127.0.0.1-8000"]),
        (["http://gpu_1.internal/v1"], ["gpu_1.internal"]),
        (["http://[::1]:8000", "http://[fd00::7]:1"], ["localhost-8000", "fd00--7-1"]),
        (["https://GPU.Example:1"], ["gpu.example-1"]),
        (["http://a:1/x", "http://a:1/y", "http://b:1"], ["a-1-1", "a-1-2", "b-1"]),
        ([f"http://{'a' * 63}.{'b' * 63}:65535"] * 2, ["a" * 60 + "-1", "a" * 60 + "-2"]),
    ],
)
def test_an_engine_without_a_name_is_called_after_where_it_is(urls: list[str], names: list[str]) -> None:
    config = load({**HERE, "engine": [{"url": url} for url in urls]}, None)
    assert [engine.name for engine in config.engines] == names
    assert all(is_name(name) for name in names)


def test_engines_that_are_named_are_not_looked_for_again() -> None:
    engines = [{"url": "http://localhost:8000"}, {"url": "http://gpu.internal:8080"}]
    config = load({**HERE, "engine": engines, "find_engines": True}, None)
    assert 8000 not in config.usual_ports
    assert {8080, 11434} <= set(config.usual_ports)


@pytest.mark.parametrize(
    "engine",
    [
        {"command": "serve", "port": 8000, "models": ["m"]},
        {"url": "http://0.0.0.0:8000"},
        {"url": "http://[::]:8000"},
    ],
)
def test_an_engine_that_the_agent_starts_or_that_any_address_leads_to_is_not_looked_for_again(
    engine: dict[str, Any],
) -> None:
    config = load({**HERE, "engine": [engine], "find_engines": True}, None)
    assert 8000 not in config.usual_ports
    assert 8080 in config.usual_ports


@pytest.mark.parametrize(
    ("engine", "reason"),
    [
        ({"url": "http://a:1", "health": "/ping"}, "name them, with models"),
        ({"url": "http://a:1", "health": "ping", "models": ["m"]}, "a path begins with /"),
        ({"url": "http://a:1", "health": "/a b", "models": ["m"]}, "holds no blanks"),
        ({"url": "http://a:1", "health": "/ping", "models": ["a b"]}, "'a b' is no name"),
        ({"torch": "demo", "health": "/ping", "models": ["m"]}, "health is for engines with a url"),
    ],
)
def test_a_health_path_stands_in_for_a_list_of_models(engine: dict[str, Any], reason: str) -> None:
    assert reason in mistakes({**HERE, "engine": [engine]})
    good = {"url": "http://a:1", "health": "/ping", "models": ["m"]}
    assert load({**HERE, "engine": [good]}, None).engines[0].settings().health == "/ping"


def test_tls_and_the_proxy_are_worked_out_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    settings = load({"gateway": "https://gw"}, None).dial_settings()
    assert (settings.url, settings.proxy) == ("wss://gw/tunnel", "http://proxy:3128")
    assert isinstance(settings.tls, ssl.SSLContext)
    assert load(HERE, None).dial_settings().tls is None
    with pytest.raises(ConfigError, match="ca_file"):
        load({"gateway": "https://gw", "ca_file": tmp_path / "none.pem"}, None).dial_settings()


def test_a_process_of_the_gateway_is_dialled_on_this_host_only_where_the_gateway_is() -> None:
    here, far = load(HERE, None), load({"gateway": "https://gw"}, None)
    assert here.peer_dial_settings("http://127.0.0.1:8702").url == "ws://127.0.0.1:8702/tunnel"
    assert far.peer_dial_settings("https://gw2").url == "wss://gw2/tunnel"
    for address in ("http://127.0.0.1:8702", "https://localhost:8702"):
        with pytest.raises(ValueError, match="on this host"):
            far.peer_dial_settings(address)
    with pytest.raises(ValueError, match="write https"):
        far.peer_dial_settings("http://gw2")


def test_a_certificate_for_the_gateways_tls_is_checked_at_the_start(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path)
    shown = {"gateway": "https://gw", "client_cert": cert, "client_key": key}
    assert isinstance(load(shown, None).dial_settings().tls, ssl.SSLContext)
    with pytest.raises(ConfigError, match="client_cert"):
        load(shown | {"client_key": tmp_path / "none.pem"}, None).dial_settings()
    with pytest.raises(ConfigError, match="client_cert"):
        load(shown | {"client_key": cert}, None).dial_settings()


def test_settings_are_frozen() -> None:
    config = load(HERE, None)
    with pytest.raises(ValueError, match="frozen"):
        config.slots = 3  # type: ignore[misc]
    assert isinstance(config, AgentConfig)


def test_defaults_fit_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert default_state_dir({"XDG_STATE_HOME": "/s"}) == Path("/s/trunkline/agent")
    assert default_state_dir({}) == Path.home() / ".local/state/trunkline/agent"
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert default_state_dir({}) == Path("/var/lib/trunkline/agent")


def test_a_user_without_a_home_directory_has_a_state_directory_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    assert default_state_dir({}) == Path("/.local/state/trunkline/agent")


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        ({"torch": "/nonexistent"}, "--torch '/nonexistent': a model is 'demo' or a directory"),
        ({"url": "ftp://e"}, "--engine: 'ftp://e' is not an engine's URL"),
    ],
)
def test_a_flag_that_is_wrong_is_named_as_it_was_written(engine: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        load({**HERE, "engine": [engine]}, None)
    assert told in str(wrong.value)
    assert "engine[0]" not in str(wrong.value)
