import re
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from gateway.api.exchange.exchange import HttpSettings
from gateway.api.server.request_parser import ConnectionLimits
from gateway.app.factories import dispatch_settings, http_settings
from gateway.dispatch.dispatcher import DispatchSettings, QueueSettings
from gateway.domain.oidc import OidcTable
from gateway.domain.scopes import AdminRole
from gateway.domain.store_address import StoreAddress
from gateway.fleet.endpoint import AgentEndpointSettings
from gateway.fleet.registry import RegistrySettings
from gateway.runtime.config import ConfigError, Loaded, load
from gateway.runtime.config.settings import AgentsTable, DispatchTable, HttpTable, Settings, WaitingTable


def loaded(flags: dict[str, Any] | None = None, file: Path | None = None, **environment: str) -> Loaded:
    return load(
        flags or {}, file, {f"TRUNKLINE_GATEWAY_{name}": value for name, value in environment.items()}
    )


def complaint(flags: dict[str, Any] | None = None, file: Path | None = None, **environment: str) -> str:
    with pytest.raises(ConfigError) as caught:
        loaded(flags, file, **environment)
    return str(caught.value)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "gateway.toml"


def test_without_anything_the_defaults_hold() -> None:
    settings = loaded().settings
    assert settings.listen == "127.0.0.1:8700"
    assert settings.http.body_bytes == 64 * 1024 * 1024
    assert settings.drain_s == 30


def test_a_flag_beats_the_environment_which_beats_the_file(file: Path) -> None:
    file.write_text('listen = "127.0.0.1:1"\ndrain_s = 1\n[http]\ncomment_s = 1\nhead_s = 1\n')
    settings = loaded(
        {"listen": "127.0.0.1:3"}, file, LISTEN="127.0.0.1:2", DRAIN_S="2", HTTP__COMMENT_S="2"
    ).settings
    assert settings.listen == "127.0.0.1:3"
    assert settings.drain_s == 2
    assert (settings.http.comment_s, settings.http.head_s) == (2, 1)


def test_an_unknown_key_in_the_file_is_named_with_its_line(file: Path) -> None:
    file.write_text('listen = "127.0.0.1:1"\n\n[http]\n# comment\nbodybytes = 5\n[htpp]\nx = 1\n')
    said = complaint(None, file)
    assert f"http.bodybytes: there is no such key (line 5 of {file})" in said
    assert f"htpp: there is no such key (line 6 of {file})" in said


def test_an_impossible_value_is_named_with_its_key_and_place(file: Path) -> None:
    file.write_text("[queue]\nmax_wait_s = -1\n")
    assert "queue.max_wait_s = -1" in complaint(None, file)
    assert f"(line 2 of {file})" in complaint(None, file)
    said = complaint(HTTP__BODY_BYTES="many")
    assert "http.body_bytes = 'many'" in said
    assert "(environment TRUNKLINE_GATEWAY_HTTP__BODY_BYTES)" in said
    assert "(flag --log-level)" in complaint({"log": {"level": "loud"}})


def test_a_file_that_is_not_there_is_named_as_it_was_written(tmp_path: Path) -> None:
    said = complaint({"tls": {"cert": tmp_path / "nope.pem"}})
    assert f"tls.cert = '{tmp_path / 'nope.pem'}': there is no such file" in said


def test_an_inline_table_and_dotted_keys_have_lines_too(file: Path) -> None:
    file.write_text('log = { level = "loud" }\nhttp.comment_s = 0\n')
    said = complaint(None, file)
    assert f"(line 1 of {file})" in said
    assert f"(line 2 of {file})" in said


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TRUSTED_PROXIES", "10.0.0.0/8"),
        ("HTTP__CORS_ORIGINS", "https://app.test"),
        ("QUEUE__TENANT_WEIGHTS", "a=3"),
        ("HTTP", "x"),
        ("OIDC", "[}"),
    ],
)
def test_a_variable_that_holds_a_list_or_a_table_is_json(name: str, value: str) -> None:
    assert f"TRUNKLINE_GATEWAY_{name}: write lists and tables as JSON" in complaint(
        None, None, **{name: value}
    )


def test_an_unknown_variable_is_an_error() -> None:
    assert "TRUNKLINE_GATEWAY_LISTN: there is no such setting" in complaint(LISTN="x")
    assert "TRUNKLINE_GATEWAY_HTTP__X" in complaint(HTTP__X="x")


def test_the_variable_that_names_the_file_is_known() -> None:
    assert loaded(CONFIG="/etc/gateway.toml")


@pytest.mark.parametrize(
    ("text", "says"), [("listen = ", "is not valid TOML"), ('listen = "\udcff"', "cannot read")]
)
def test_a_file_that_cannot_be_read_is_said(file: Path, text: str, says: str) -> None:
    file.write_bytes(text.encode(errors="surrogateescape"))
    assert says in complaint(None, file)


def test_a_file_that_is_not_there_is_said(file: Path) -> None:
    assert "cannot read" in complaint(None, file)


@pytest.mark.parametrize("listen", ["8700", "host:", ":8700", "h:99999", "::1:8700", "[::1]", "h:x", ""])
def test_an_address_that_is_none_is_said(listen: str) -> None:
    assert "HOST:PORT" in complaint({"listen": listen})


@pytest.mark.parametrize(
    ("listen", "address"),
    [("127.0.0.1:0", ("127.0.0.1", 0)), ("[::1]:80", ("::1", 80)), ("localhost:80", ("localhost", 80))],
)
def test_an_address_has_a_host_and_a_port(listen: str, address: tuple[str, int]) -> None:
    assert loaded({"listen": listen}).settings.address == address


@pytest.mark.parametrize("listen", ["0.0.0.0:8700", "[::]:8700", "10.0.0.1:80", "gateway.example.com:80"])
def test_beyond_loopback_tls_is_wanted(listen: str, file: Path) -> None:
    assert "--behind-tls-terminator" in complaint({"listen": listen})
    assert loaded({"listen": listen, "behind_tls_terminator": True})
    file.write_text("pem")
    assert loaded({"listen": listen, "tls": {"cert": file, "key": file}})


def test_tls_files_go_together_and_must_be_there(file: Path) -> None:
    file.write_text("pem")
    assert "go together" in complaint({"tls": {"cert": file}})
    assert "tls.key" in complaint({"tls": {"cert": file, "key": Path("/nowhere")}})


def test_what_needs_tls_says_so(file: Path) -> None:
    file.write_text("pem")
    pair = {"cert": file, "key": file}
    assert "need tls.cert" in complaint({"tls": {"redirect_listen": "0.0.0.0:80"}})
    assert "need tls.cert" in complaint({"tls": {"client_ca": file}})
    assert "need tls.client_ca" in complaint({"tls": pair | {"client_required": True}})
    assert "need tls.client_ca" in complaint({"tls": pair | {"agents_required": True}})
    assert "tls.redirect_listen" in complaint({"tls": pair | {"redirect_listen": "80"}})
    table = loaded({"tls": pair | {"redirect_listen": "[::]:80", "client_ca": file}}).settings.tls
    assert (table.redirect, table.client_ca) == (("::", 80), file)


@pytest.mark.parametrize("proxy", ["10.0.0.1/8", "proxy.test", "10.0.0.0/40", ""])
def test_a_trusted_proxy_is_a_network(proxy: str) -> None:
    assert "trusted_proxies" in complaint({"trusted_proxies": [proxy]})


@pytest.mark.parametrize(
    "origin",
    ["*", "https://*.test", "https://app.test/", "HTTPS://app.test", "app.test", "null", "https://a b"],
)
def test_an_origin_is_exact(origin: str) -> None:
    assert "http.cors_origins" in complaint({"http": {"cors_origins": [origin]}})


def test_a_silence_that_may_be_a_mere_delay_ends_no_worker() -> None:
    assert "worker_silence_s = 4.9: less than 5" in complaint({"worker_silence_s": 4.9})
    assert [loaded({"worker_silence_s": each}).settings.worker_silence_s for each in (0, 5)] == [0.0, 5.0]
    assert "worker_start_s = 4.9: less than 5" in complaint({"worker_start_s": 4.9})
    assert [loaded({"worker_start_s": each}).settings.worker_start_s for each in (0, 5)] == [0.0, 5.0]


def test_origins_and_proxies_reach_the_parts() -> None:
    origins = ["https://app.test:8443", "http://[::1]:3000", "tauri://localhost"]
    settings = loaded({"http": {"cors_origins": origins}, "trusted_proxies": ["10.0.0.0/8", "::1"]}).settings
    part = http_settings(settings)
    assert part.cors is not None
    assert dict(part.cors.headers({b"origin": b"tauri://localhost"}))[b"vary"] == b"origin"
    assert part.proxies is not None
    assert part.proxies.trusts("10.1.2.3")


def test_what_is_shown_can_be_loaded_again_and_says_where_it_came_from(file: Path) -> None:
    file.write_text('[queue]\nmax_requests = 7\n[placement]\npinned = ["a-*", "b\\"c"]\n')
    shown = loaded({"state": Path("/s\\t"), "log": {"level": "debug"}}, file, DRAIN_S="5").toml()
    assert "max_requests = 7  # line 2 of" in shown
    assert "drain_s = 5.0  # environment TRUNKLINE_GATEWAY_DRAIN_S" in shown
    assert 'level = "debug"  # flag --log-level' in shown
    assert tomllib.loads(shown)["state"] == "/s\\t"
    file.write_text(shown)
    again = loaded(None, file).settings
    assert (again.queue.max_requests, again.drain_s, again.log.level) == (7, 5.0, "debug")
    assert again.placement.pinned == ["a-*", 'b"c']


def _names(model: type[BaseModel]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield name
        for part in (field.annotation, *get_args(field.annotation)):
            if isinstance(part, type) and issubclass(part, BaseModel):
                yield from _names(part)


def test_no_setting_is_a_secret_so_that_all_can_be_shown() -> None:
    names = set(_names(Settings))
    assert {"cert", "connections_per_ip", "tenant_weights"} <= names
    secret = {name for name in names if re.search("secret|passw|token$|api_?key|credential", name)}
    secret -= {"password_file"}  # the name of a file is none
    assert not secret, "make it a SecretStr, and mask it in complaints too"


SERVER = "postgresql://gw:s3cret@h/d?sslmode=require&password=s3cret"


def test_the_address_of_a_store_is_shown_without_its_password() -> None:
    found = loaded({"store": {"url": SERVER, "stale_s": 5}})
    assert found.settings.store_address == StoreAddress(SERVER, stale_s=5.0)
    assert 'url = "postgresql://gw@h/d?sslmode=require"' in found.toml()
    assert "s3cret" not in found.toml() + repr(found.settings)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"url": "postgresql://gw:s3cret/x@h/d"}, "write postgresql://USER@HOST"),
        ({"url": SERVER, "stale_s": -1}, "store.stale_s = -1"),
        ({"password_file": "k"}, "store.password_file needs store.url"),
    ],
)
def test_a_store_that_cannot_be_is_said_without_its_password(table: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded({"store": table})
    assert said in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_the_cluster_key_is_of_a_store_on_a_server() -> None:
    with pytest.raises(ConfigError, match=re.escape("cluster.key needs store.url")):
        loaded({"cluster": {"key": "k"}})
    found = loaded({"store": {"url": SERVER}}, CLUSTER__KEY="/run/secrets/cluster.key")
    assert found.settings.store_address == StoreAddress(SERVER, Path("/run/secrets/cluster.key"))


def _same(table: Any, part: Any) -> None:
    ours = table.model_dump()
    shared = {field.name for field in fields(part)} & ours.keys()
    assert shared
    assert {name: ours[name] for name in shared} == {name: getattr(part, name) for name in shared}


def test_dispatch_gets_what_is_set() -> None:
    settings = loaded({"dispatch": {"retry_share": 0.5, "slow_start_s": 0, "max_attempts": 7}}).settings
    part = dispatch_settings(settings)
    assert (part.retry_share, part.slow_start_s, part.max_attempts) == (0.5, 0, 7)


def test_tenants_have_weights_under_any_name(file: Path) -> None:
    file.write_text('[queue.tenant_weights]\nplain = 2\n"with a.dot" = 0.5\n')
    first = loaded(None, file)
    assert first.settings.queue.tenant_weights == {"plain": 2.0, "with a.dot": 0.5}
    file.write_text(first.toml())
    assert loaded(None, file).settings.queue == first.settings.queue
    by_variable = loaded(QUEUE__TENANT_WEIGHTS='{"a": 3}').settings
    assert by_variable.queue.tenant_weights == {"a": 3.0}
    assert "queue.tenant_weights.a = 0" in complaint({"queue": {"tenant_weights": {"a": 0}}})


def test_settings_with_any_character_are_shown_as_toml_that_is_read_again() -> None:
    name = 'a\n"b"\t\x7f\\é'
    found = loaded({"state": Path(name), "queue": {"tenant_weights": {name: 2.0}}})
    shown = tomllib.loads(found.toml())
    assert (shown["state"], shown["queue"]["tenant_weights"]) == (name, {name: 2.0})


def test_models_have_rules_of_reuse_under_any_name(file: Path) -> None:
    file.write_text('[reuse.models]\n"org/model.v1" = { cache_s = 60 }\nplain = { coalesce = false }\n')
    first = loaded(None, file)
    rules = {name: (rule.cache_s, rule.coalesce) for name, rule in first.settings.reuse.models.items()}
    assert rules == {"org/model.v1": (60.0, True), "plain": (0.0, False)}
    file.write_text(first.toml())
    assert loaded(None, file).settings.reuse == first.settings.reuse
    assert "reuse.models.m.cache_s = -1" in complaint({"reuse": {"models": {"m": {"cache_s": -1}}}})
    assert "half of reuse.cache_bytes" in complaint({"reuse": {"cache_bytes": 2**20, "entry_bytes": 2**20}})


def test_the_longest_answer_kept_must_fit_into_what_is_kept() -> None:
    assert "records_total_bytes" in complaint(
        {"dispatch": {"record_bytes": 2_000_000, "records_total_bytes": 1_000_000}}
    )
    assert "retry_share = '2'" in complaint(DISPATCH__RETRY_SHARE="2")


def test_the_defaults_are_those_of_the_parts() -> None:
    _same(WaitingTable(), QueueSettings())
    _same(DispatchTable(), DispatchSettings())
    _same(AgentsTable(), AgentEndpointSettings())
    _same(AgentsTable(), RegistrySettings())
    assert http_settings(loaded().settings) == HttpSettings()
    http = HttpTable()
    assert ConnectionLimits() == ConnectionLimits(http.head_bytes, http.head_s, http.connections)


OIDC = """
[[oidc]]
issuer = "https://id.example"
audience = "trunkline"
tenant_claim = "org"
roles_claim = "realm_access.roles"
roles = { "gpu-ops" = "operator" }

[[oidc]]
issuer = "https://other.example/realm"
audience = ["a", "b"]
jwks_url = "https://keys.example/k"
algorithms = ["EdDSA"]
"""


def test_issuers_are_read_and_shown(file: Path) -> None:
    file.write_text(OIDC)
    first = loaded(None, file)
    one, other = first.settings.oidc
    assert (one.audience, one.jwks_url, one.roles, one.skew_s) == (
        ["trunkline"],
        None,
        {"gpu-ops": "operator"},
        60.0,
    )
    assert (other.audience, other.algorithms) == (["a", "b"], ["EdDSA"])
    file.write_text(first.toml())
    assert loaded(None, file).settings.oidc == first.settings.oidc


def test_an_issuer_is_what_is_set_of_it(file: Path) -> None:
    file.write_text(OIDC)
    one, other = loaded(None, file).settings.oidc
    assert one == OidcTable(
        issuer="https://id.example",
        audience=["trunkline"],
        tenant_claim="org",
        roles_claim="realm_access.roles",
        roles={"gpu-ops": AdminRole.OPERATOR},
    )
    assert other == OidcTable(
        issuer="https://other.example/realm",
        audience=["a", "b"],
        jwks_url="https://keys.example/k",
        algorithms=["EdDSA"],
    )


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        ({"issuer": "http://id.example"}, "oidc.0.issuer"),
        ({"jwks_url": "http://10.0.0.1/keys"}, "oidc.0.jwks_url"),
        ({"jwks_url": "file:///etc/passwd"}, "oidc.0.jwks_url"),
        ({"algorithms": ["HS256"]}, "oidc.0.algorithms.0"),
        ({"algorithms": ["none"]}, "oidc.0.algorithms.0"),
        ({"algorithms": []}, "oidc.0.algorithms"),
        ({"audience": []}, "oidc.0.audience"),
        ({"skew_s": 601}, "oidc.0.skew_s"),
        ({"roles": {"x": "root"}}, "oidc.0.roles.x"),
        ({"ca_file": "/nowhere"}, "oidc.0.ca_file"),
        ({"secret": "x"}, "there is no such key"),
    ],
)
def test_an_issuer_that_cannot_be_trusted_is_said(change: dict[str, Any], answer: str) -> None:
    table = {"issuer": "https://id.example", "audience": "a", **change}
    assert answer in complaint({"oidc": [table]})


def test_an_issuer_is_there_once() -> None:
    table = {"issuer": "https://id.example", "audience": "a"}
    assert "same issuer" in complaint({"oidc": [table, table]})


def test_each_value_names_where_it_really_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "f.toml"
    file.write_text(
        "listen = '127.0.0.1:8'\n[http]\nbody_bytes = 1000000\n[[oidc]]\nissuer = 'https://a.example'\n"
        "audience = 'x'\n[[oidc]]\nissuer = 'https://b.example'\naudience = 'y'\nskew_s = 5\n"
    )
    shown = loaded({"drain_s": 3.0}, file, HTTP='{"buffer_bytes": 2000000}', QUEUE__MAX_REQUESTS="7").toml()
    lines = shown.splitlines()
    assert f'listen = "127.0.0.1:8"  # line 1 of {file}' in lines
    assert "drain_s = 3.0  # flag --drain-s" in lines
    assert f"body_bytes = 1000000  # line 3 of {file}" in lines
    assert "buffer_bytes = 2000000  # environment TRUNKLINE_GATEWAY_HTTP" in lines
    assert "head_bytes = 65536  # default" in lines, "not the line of its table, nor a variable of another"
    assert "max_requests = 7  # environment TRUNKLINE_GATEWAY_QUEUE__MAX_REQUESTS" in lines
    assert f'issuer = "https://b.example"  # line 8 of {file}' in lines
    assert "skew_s = 60.0  # default" in lines
    assert f"skew_s = 5.0  # line 10 of {file}" in lines
    assert "# state is not set" in lines
