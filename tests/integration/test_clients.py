"""Who clients are, on a real gateway: tokens of an issuer that changes its keys, keys with limits, admins."""

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
import orjson
import pytest

from gateway.domain.scopes import AdminRole, limited
from gateway.storage import Store
from tests.gateway.auth.minting import jwk, jwks, private_key
from tests.support.processes import Gateway, House, until


class Issuer:
    """A server on loopback with a discovery document and keys."""

    def __init__(self) -> None:
        self.keys = [jwk("ES256", "k1")]
        self.away = False
        self.fetches = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.fetches += 1
                body = outer.answer(self.path)
                self.send_response(200 if body else 503)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def answer(self, path: str) -> bytes:
        if self.away:
            return b""
        if path == "/.well-known/openid-configuration":
            return orjson.dumps({"issuer": self.url, "jwks_uri": f"{self.url}/keys"})
        return jwks(*self.keys)

    def token(self, kind: str = "ES256", kid: str = "k1", name: str = "a", **more: Any) -> str:
        now_s = time.time()
        claims = {
            "iss": self.url,
            "aud": "trunkline",
            "sub": "alice",
            "exp": now_s + 60,
            "iat": now_s,
            **more,
        }
        return jwt.encode(claims, private_key(kind, name), kind, {"kid": kid})

    def stop(self) -> None:
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    made = Issuer()
    yield made
    made.stop()


@pytest.fixture
def gateway(house: House, issuer: Issuer, tmp_path: Path) -> Gateway:
    config = tmp_path / "gateway.toml"
    config.write_text(
        f'[[oidc]]\nissuer = "{issuer.url}"\naudience = "trunkline"\nmodels_claim = "models"\n'
        'roles_claim = "realm_access.roles"\ntenant_claim = "org"\n'
    )
    return house.gateway("--config", str(config))


def ask(
    gateway: Gateway, path: str, key: str, body: object = None, method: str | None = None
) -> tuple[int, Any]:
    """Status and JSON."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    request = urllib.request.Request(f"{gateway.url}{path}", data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def code(answer: tuple[int, Any]) -> tuple[int, str]:
    return answer[0], answer[1]["error"]["code"]


def chat(gateway: Gateway, key: str, model: str, **more: object) -> tuple[int, str]:
    """Nothing serves anything here, so what is allowed is a 404."""
    return code(ask(gateway, "/v1/chat/completions", key, {"model": model, "messages": [], **more}))


def issued(issuer: Issuer, **more: Any) -> str:
    """A token of the tenant acme, for models that begin with llama."""
    return issuer.token(**{"org": "acme", "models": ["llama-*"], **more})


def until_known(gateway: Gateway, token: str) -> None:
    """The gateway has the issuer's key that signed the token."""
    until("the keys are there", lambda: ask(gateway, "/v1/models", token)[0] == 200)


def assert_written_nowhere(house: House, *secrets: str) -> None:
    written = "".join(path.read_text("utf-8", "replace") for path in house.directory.rglob("*.log"))
    assert written
    for secret in secrets:
        assert secret not in written
        assert secret.rpartition(".")[2][8:40] not in written


def test_tokens_let_in_as_far_as_they_say(house: House, gateway: Gateway, issuer: Issuer) -> None:
    good = issued(issuer)
    until_known(gateway, good)
    assert chat(gateway, good, "llama-8b") == (404, "model_not_found")
    assert chat(gateway, good, "gpt") == (403, "model_not_allowed")
    assert chat(gateway, issued(issuer, models=None), "llama-8b") == (403, "model_not_allowed")
    for wrong in ({"org": 5}, {"aud": "other"}, {"name": "mallory"}):
        assert chat(gateway, issued(issuer, **wrong), "llama-8b") == (401, "invalid_token")
    assert chat(gateway, issued(issuer, exp=time.time() - 61), "llama-8b") == (401, "token_expired")
    assert code(ask(gateway, "/admin/agents", good)) == (403, "role_required")
    viewer = issued(issuer, realm_access={"roles": ["viewer", "offline_access"]})
    assert ask(gateway, "/admin/agents", viewer) == (200, {"agents": []})
    assert code(ask(gateway, "/admin/keys", viewer)) == (403, "role_required")
    assert_written_nowhere(house, good, viewer)


def test_tokens_of_an_issuers_new_key_are_soon_taken_and_those_of_its_old_one_soon_not(
    house: House, gateway: Gateway, issuer: Issuer
) -> None:
    old, new = issued(issuer), issued(issuer, kind="EdDSA", kid="k2", name="b")
    until_known(gateway, old)
    issuer.keys = [jwk("EdDSA", "k2", "b")]
    assert code(ask(gateway, "/v1/models", new)) == (401, "signing_key_unknown")
    until_known(gateway, new)
    assert code(ask(gateway, "/v1/models", old)) == (401, "signing_key_unknown")
    fetches = issuer.fetches
    for number in range(20):  # whoever makes key ids up makes nobody fetch
        assert code(ask(gateway, "/v1/models", issued(issuer, kid=f"x{number}")))[1] == "signing_key_unknown"
    assert issuer.fetches == fetches
    issuer.away = True
    assert ask(gateway, "/v1/models", new)[0] == 200, "the issuer is away, its tokens still do"
    assert_written_nowhere(house, old, new)


def test_keys_let_in_as_far_as_their_limits_and_until_they_are_rotated_or_deleted(
    house: House, gateway: Gateway
) -> None:
    with Store.open(gateway.state) as store:
        key = store.keys.create("ci", "acme", time.time(), scopes=limited(["llama-*"], ["chat"], ["batch"]))
        admin = store.keys.create("boss", "acme", time.time(), role=AdminRole.ADMIN)
    assert chat(gateway, key, "llama-8b") == (404, "model_not_found")
    assert chat(gateway, key, "llama-8b", service_tier="priority") == (403, "tier_not_allowed")
    assert code(ask(gateway, "/v1/embeddings", key, {"model": "llama"})) == (403, "route_not_allowed")
    with Store.open(gateway.state) as store:
        _, rotated = store.keys.rotate("ci", 3600.0, time.time())
    assert chat(gateway, rotated, "llama-8b") == chat(gateway, key, "llama-8b")
    with Store.open(gateway.state) as store:
        _, last = store.keys.rotate("ci", 0.0, time.time())
    assert chat(gateway, rotated, "llama-8b") == (401, "invalid_api_key")
    status, made = ask(gateway, "/admin/keys", admin, {"name": "made", "life_s": 3600})
    assert (status, ask(gateway, "/v1/models", made["key"])[0]) == (200, 200)
    assert ask(gateway, "/admin/keys/made", admin, method="DELETE")[0] == 200
    assert code(ask(gateway, "/v1/models", made["key"])) == (401, "invalid_api_key")
    assert_written_nowhere(house, key, rotated, last, admin, made["key"])
