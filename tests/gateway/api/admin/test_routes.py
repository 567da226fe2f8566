"""The admin API over raw ASGI: who may do what, and what is refused."""

import re
import threading
from collections.abc import Sequence
from typing import Any

import pytest
import structlog

from gateway.api.admin import store as admin_store
from gateway.api.admin.resources.table import OPERATIONS
from gateway.api.exchange.buffers import BufferBudget
from gateway.api.exchange.exchange import HttpSettings
from gateway.api.exchange.middleware import RequestMiddleware, with_origin_checks
from gateway.api.server.cors import Cors
from gateway.domain.scopes import AdminRole
from gateway.observability.audit import append_pending_acts
from gateway.runtime.lifecycle import Lifecycle
from gateway.storage import KeyRecord, KeyStore
from gateway.storage.audit_heads import AuditHead
from gateway.storage.errors import StateBusy, StateCorrupt, StateError, StateMissing, StateUnwritable
from tests.gateway.api.admin.house import NEW_KEY, QUERIES, House, enrol, note_failed_delivery
from tests.gateway.api.calls import Call
from tests.gateway.api.support import JSON_TYPE, MIB
from tests.gateway.fleet.fleet import deployment


async def test_the_event_loops_thread_does_not_read_keys_that_have_changed(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: list[int] = []
    read = KeyStore.changed_since

    def watched(store: KeyStore, revision: int) -> tuple[int, Sequence[KeyRecord]]:
        readers.append(threading.get_ident())
        return read(store, revision)

    monkeypatch.setattr(KeyStore, "changed_since", watched)
    assert (await house.ask("GET", "/admin/queue"))[0] == 200
    assert readers
    assert threading.get_ident() not in readers


RIGHTS = [
    ("GET", "/admin/agents", AdminRole.VIEWER),
    ("GET", "/admin/models", AdminRole.VIEWER),
    ("GET", "/admin/queue", AdminRole.VIEWER),
    ("GET", "/admin/scaling", AdminRole.VIEWER),
    ("GET", "/admin/scaling/m", AdminRole.VIEWER),
    ("GET", "/admin/jobs", AdminRole.VIEWER),
    ("GET", "/admin/batches", AdminRole.VIEWER),
    ("GET", "/admin/self", AdminRole.VIEWER),
    ("GET", "/admin/settings", AdminRole.OPERATOR),
    ("GET", "/admin/diagnosis", AdminRole.VIEWER),
    ("POST", "/admin/diagnosis/body", AdminRole.VIEWER),
    ("POST", "/admin/agents/gpu-1/drain", AdminRole.OPERATOR),
    ("POST", "/admin/agents/gpu-1/move", AdminRole.OPERATOR),
    ("DELETE", "/admin/agents/gpu-1/drain", AdminRole.OPERATOR),
    ("DELETE", "/admin/agents/gpu-1", AdminRole.ADMIN),
    ("GET", "/admin/keys", AdminRole.ADMIN),
    ("POST", "/admin/keys", AdminRole.ADMIN),
    ("POST", "/admin/keys/its-none/rotate", AdminRole.ADMIN),
    ("GET", "/admin/aliases", AdminRole.VIEWER),
    ("PUT", "/admin/aliases/org/llama", AdminRole.OPERATOR),
    ("PUT", "/admin/aliases/org/llama", AdminRole.OPERATOR),
    ("POST", "/admin/aliases/org/llama/rollback", AdminRole.OPERATOR),
    ("DELETE", "/admin/aliases/org/llama", AdminRole.OPERATOR),
    ("GET", "/admin/tokens", AdminRole.ADMIN),
    ("POST", "/admin/tokens", AdminRole.ADMIN),
    ("PATCH", "/admin/keys/its-none", AdminRole.ADMIN),
    ("GET", "/admin/enrolments", AdminRole.VIEWER),
    ("PATCH", "/admin/agents/gpu-2", AdminRole.ADMIN),
    ("PUT", "/admin/aliases/org/llama", AdminRole.OPERATOR),
    ("GET", "/admin/aliases/org/llama", AdminRole.VIEWER),
    ("PATCH", "/admin/aliases/org/llama", AdminRole.OPERATOR),
    ("GET", "/admin/tenants", AdminRole.ADMIN),
    ("PATCH", "/admin/tenants/acme", AdminRole.ADMIN),
    ("DELETE", "/admin/tenants/acme", AdminRole.ADMIN),
    ("GET", "/admin/prices", AdminRole.ADMIN),
    ("PUT", "/admin/prices/org/llama", AdminRole.ADMIN),
    ("DELETE", "/admin/prices/org/llama", AdminRole.ADMIN),
    ("GET", "/admin/usage", AdminRole.ADMIN),
    ("GET", "/admin/identity", AdminRole.VIEWER),
    ("GET", "/admin/audit/verify", AdminRole.VIEWER),
    ("GET", "/admin/audit", AdminRole.ADMIN),
    ("DELETE", "/admin/audit/heads/gateway", AdminRole.ADMIN),
    ("GET", "/admin/webhooks/secrets", AdminRole.ADMIN),
    ("POST", "/admin/webhooks/secrets", AdminRole.ADMIN),
    ("POST", "/admin/webhooks/secrets/acme/rotate", AdminRole.ADMIN),
    ("DELETE", "/admin/webhooks/secrets/acme", AdminRole.ADMIN),
    ("GET", "/admin/webhooks/deliveries", AdminRole.OPERATOR),
    ("POST", "/admin/webhooks/deliveries/evt_1/redeliver", AdminRole.OPERATOR),
    ("DELETE", "/admin/keys/its-none", AdminRole.ADMIN),
]


BODIES: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", "/admin/keys"): NEW_KEY,
    ("PUT", "/admin/aliases/org/llama"): {"targets": []},
    ("PATCH", "/admin/keys/its-none"): {"rpm": 5},
    ("POST", "/admin/webhooks/secrets"): {"tenant": "acme"},
    ("PATCH", "/admin/agents/gpu-2"): {"models": ["m"]},
    ("PATCH", "/admin/aliases/org/llama"): {"fallback": ["m"]},
    ("PATCH", "/admin/tenants/acme"): {"tpm": 100},
    ("PUT", "/admin/prices/org/llama"): {"input": 1.5},
}


async def test_each_act_takes_its_role_and_less_will_not_do(house: House) -> None:
    append_pending_acts(house.store)
    enrol(house.store, "gpu-1")
    enrol(house.store, "gpu-2")
    house.store.audit_heads.note(AuditHead("gateway", 1, "0" * 64, 1.0, "host"))
    house.fleet.connect("gpu-1", deployment("m"))
    note_failed_delivery(house.store)
    for turn, (method, path, needed) in enumerate(RIGHTS):
        body = BODIES.get((method, path))
        if body is not None and "targets" in body:
            body = {"targets": [f"llama@v{turn}"]}
        for role in (None, *(role for role in AdminRole if not role.covers(needed))):
            status, found, _ = await house.ask(method, path, role, body)
            assert (status, found["error"]["code"]) == (403, "role_required")
            assert f"the role '{needed}'" in found["error"]["message"]
        status, found, _ = await house.ask(method, path, needed, body, within_s=60)
        assert status == 200, (method, path, found)


def test_every_operation_of_the_table_is_in_the_list_of_rights() -> None:
    """So that none can be added without its role being tried."""
    for operation in (each for each in OPERATIONS.values() if not each.only_here):
        pattern = re.compile(re.sub(r"{\w+(:path)?}", r"[^/]+(/[^/]+)??", operation.path))
        found = [r for m, path, r in RIGHTS if m == operation.method and pattern.fullmatch(path)]
        assert operation.role in found or operation.name == "revoke_token", operation


async def test_only_who_shows_a_key_is_told_anything(house: House) -> None:
    credentials: list[tuple[tuple[bytes, bytes], ...]] = [
        (),
        ((b"authorization", b"Bearer sk-tl-nope"),),
        ((b"authorization", b"Basic YWRtaW46YWRtaW4="),),
        ((b"cookie", b"key=sk-tl-x"),),
    ]
    for headers in credentials:
        for method, path in (("GET", "/admin/keys"), ("POST", "/admin/keys"), ("PATCH", "/admin/agents")):
            call = Call(house.app, method, path, headers)
            call.body(b"{}")
            await call.done()
            assert call.status == 401
            assert "allow" not in call.headers


async def test_no_web_page_is_let_in_whatever_origins_are_allowed_elsewhere(house: House) -> None:
    settings = HttpSettings(cors=Cors(["https://app.example"]))
    lifecycle = Lifecycle()
    app = RequestMiddleware(
        with_origin_checks(house.router, settings),
        settings,
        BufferBudget(MIB),
        lifecycle,
        lambda *facts: None,
    )
    asked = ((b"origin", b"https://app.example"), (b"access-control-request-method", b"POST"))
    for path, status in (("/v1/models", 204), ("/admin/keys", 401)):
        call = Call(app, "OPTIONS", path, asked)
        call.body(b"")
        await call.done()
        assert call.status == status
        assert ("access-control-allow-methods" in call.headers) is (status == 204)


@pytest.mark.parametrize(
    ("method", "path", "body", "end"),
    [
        ("POST", "/admin/keys", {"name": "x" * 60_000}, "begin with a letter or digit."),
        ("DELETE", "/admin/keys/" + "x" * 6_000, None, "see: trunkline key list."),
        ("POST", f"/admin/agents/{'x' * 6_000}/drain", None, "see: trunkline agents list."),
    ],
)
async def test_a_refusal_quotes_only_the_beginning_of_a_name_that_is_too_long(
    house: House, method: str, path: str, body: object, end: str
) -> None:
    status, found, _ = await house.ask(method, path, body=body)
    assert status in (400, 404)
    message = found["error"]["message"]
    assert "x" * 100 in message
    assert message.endswith(end)
    assert len(message) < 1000


async def test_bodies_are_json_sent_as_such(house: House) -> None:
    for headers, status in (((), 400), (((b"content-type", b"text/plain"),), 400)):
        got, _, _ = await house.ask("POST", "/admin/keys", body=NEW_KEY, headers=headers)
        assert got == status
    gzip = (JSON_TYPE, (b"content-encoding", b"gzip"))
    assert (await house.ask("POST", "/admin/keys", body=NEW_KEY, headers=gzip))[0] == 415
    assert (await house.ask("POST", "/admin/keys", raw=b"{"))[0] == 400


async def test_what_is_not_there_is_a_404_and_a_wrong_method_a_405(house: House) -> None:
    for method, path in (
        ("DELETE", "/admin/keys/nobody"),
        ("POST", "/admin/keys/nobody/rotate"),
        ("DELETE", "/admin/agents/nobody"),
        ("POST", "/admin/agents/nobody/drain"),
    ):
        status, found, _ = await house.ask(method, path)
        assert (status, found["error"]["code"]) == (404, "not_found")
    status, _, headers = await house.ask("PUT", "/admin/keys", body=NEW_KEY)
    assert (status, headers["allow"]) == (405, "GET, POST")


async def test_who_did_it_is_noted_with_the_act(house: House) -> None:
    await house.ask("POST", "/admin/keys", body={"name": "ci"})
    key_id = house.store.keys.get("its-admin").id
    (act,) = [each for each in house.store.acts.pending(100) if each.what.get("name") == "ci"]
    assert (act.kind, act.who) == ("key.create", f"key:{key_id}")


NOT_OF_THE_STORE = (
    *("/admin/models", "/admin/queue", "/admin/audit/verify"),
    *("/admin/scaling", "/admin/scaling/m"),
    *("/admin/self", "/admin/settings"),
)
"""Pages that read nothing of the store in this process."""


def every_state_error() -> list[StateError]:
    """One of each kind, as the store words them."""
    kinds: list[type[StateError]] = [StateError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    assert {StateMissing, StateUnwritable, StateCorrupt, StateBusy} <= set(kinds)
    return [kind(f"{kind.__name__} of /state/gateway.db: do this") for kind in kinds]


@pytest.mark.parametrize("error", every_state_error(), ids=lambda error: type(error).__name__)
async def test_a_state_that_cannot_be_used_is_a_503_that_says_why(
    house: House, error: StateError, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(admin_store, "run_operation", fail)
    monkeypatch.setattr(house.store.agents, "list", fail)
    for kept in (house.store.jobs, house.store.batches):
        monkeypatch.setattr(type(kept), "list", fail)
    enrol(house.store, "gpu-1")
    house.fleet.connect("gpu-1", deployment("m"))
    asked = 0
    for method, path, needed in RIGHTS:
        if "drain" in path or "/move" in path or "diagnosis" in path or path in NOT_OF_THE_STORE:
            continue
        body = BODIES.get((method, path))
        if body is not None and "targets" in body:
            body = {"targets": ["llama"]}
        with structlog.testing.capture_logs() as logs:
            status, found, headers = await house.ask(method, path, needed, body)
        assert (status, found["error"]["code"]) == (503, "state_unavailable"), (method, path, found)
        assert found["error"]["message"] == f"The gateway's state cannot be used just now: {error}."
        assert headers["retry-after"] == "5"
        assert [(line["event"], line["error"]) for line in logs] == [("state_failed", str(error))]
        asked += 1
    assert asked > 20


@pytest.mark.parametrize(
    ("path", "query", "told"),
    [
        ("/admin/usage", b"by=colour", "by: "),
        ("/admin/usage", b"since=soon", "since: "),
        ("/admin/usage", b"limit=0", "limit: "),
        ("/admin/usage", b"limit=1001", "limit: "),
        ("/admin/usage", b"after=x", "after is what an answer before gave"),
        ("/admin/usage", b"after=%5B%22a%22%5D", "after is what an answer before gave"),
        ("/admin/usage", b"by=key&by=day", "names something twice"),
        ("/admin/usage", b"by=%ff", "cannot be read"),
        ("/admin/usage", b"&".join(b"a%d=1" % n for n in range(17)), "cannot be read"),
        ("/admin/usage", b"colour=red", "colour: "),
        ("/admin/usage", b"=red", '"": '),
        ("/admin/audit/verify", b"expect=1", "expect: "),
        ("/admin/audit", b"after=../../gateway.key@0", "after is what an answer before gave"),
        ("/admin/audit", b"after=2026-11-21.0001.jsonl@-1", "after is what an answer before gave"),
    ],
)
async def test_a_query_that_cannot_be_is_refused(house: House, path: str, query: bytes, told: str) -> None:
    status, found, _ = await house.ask("GET", path, query=query)
    assert (status, found["error"]["type"]) == (400, "invalid_request_error")
    assert told in found["error"]["message"]


async def test_what_is_taken_in_a_query_is_described(house: House) -> None:
    _, described, _ = await house.ask("GET", "/openapi.json")
    parameters = described["paths"]["/admin/usage"]["get"]["parameters"]
    assert [each["name"] for each in parameters] == ["by", "since", "after", "limit"]
    for operation in OPERATIONS.values():
        if operation.query:
            fields = QUERIES[operation.name].model_fields
            assert tuple(fields) == operation.query, "what is read is what is described"
