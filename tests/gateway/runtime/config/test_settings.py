"""What can be set fits together, or is refused; and the parts of the gateway get it."""

import re
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
from gateway.runtime.config import ConfigError
from gateway.runtime.config.settings import AgentsTable, DispatchTable, HttpTable, Settings, WaitingTable
from tests.gateway.runtime.config.loading import complaint, loaded


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
