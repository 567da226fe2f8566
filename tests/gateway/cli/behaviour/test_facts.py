"""``--json`` and the admin API tell the same facts of every resource."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.api.admin.resources.resource import Operation, ResourceCommand
from gateway.api.admin.resources.table import OPERATIONS, RESOURCES
from gateway.storage import Enrolment, Store
from tests.gateway.api.admin.house import House, note_failed_delivery
from tests.gateway.cli.command_line import Run, running

STORY: list[tuple[str, str, tuple[str, ...], dict[str, Any] | None]] = [
    ("token create --uses 8 --label region=eu", "create_token", (), {"uses": 8, "labels": {"region": "eu"}}),
    ("token list", "list_tokens", (), None),
    ("token revoke {token}", "revoke_token", ("{token}",), None),
    (
        "key create --name ci --models a,b --rpm 5",
        "create_key",
        (),
        {"name": "ci", "models": ["a", "b"], "rpm": 5},
    ),
    ("key set ci --routes any --rpm 0", "set_key", ("ci",), {"routes": ["any"], "rpm": None}),
    ("key list", "list_keys", (), None),
    ("key rotate ci", "rotate_key", ("ci",), {}),
    ("key revoke ci", "revoke_key", ("ci",), None),
    ("tenant set acme --tpm 5 --weight 2", "set_tenant", ("acme",), {"tpm": 5, "weight": 2}),
    ("tenant list", "list_tenants", (), None),
    ("tenant remove acme", "remove_tenant", ("acme",), None),
    ("price set a/b --input 0.5", "set_price", ("a/b",), {"input": 0.5}),
    ("price list", "list_prices", (), None),
    ("price remove a/b", "remove_price", ("a/b",), None),
    ("agents list", "list_enrolments", (), None),
    ("agents set gpu-7 --models m", "set_agent", ("gpu-7",), {"models": ["m"]}),
    ("agents rename gpu-7 gpu-8", "set_agent", ("gpu-7",), {"name": "gpu-8"}),
    ("agents revoke gpu-8", "revoke_agent", ("gpu-8",), {}),
    ("alias set a b@v1=9 b@v2=1", "set_alias", ("a",), {"targets": ["b@v1=9", "b@v2=1"]}),
    ("alias switch a b@v2", "set_alias", ("a",), {"targets": ["b@v2"], "switch": True}),
    ("alias rollback a", "rollback_alias", ("a",), {}),
    ("alias mirror a c --share 0.5", "change_alias", ("a",), {"mirror": {"target": "c", "share": 0.5}}),
    ("alias fallback a d,e", "change_alias", ("a",), {"fallback": ["d", "e"]}),
    ("alias list", "list_aliases", (), None),
    ("alias history a", "show_alias", ("a",), None),
    ("alias remove a", "remove_alias", ("a",), None),
    ("webhook secret create acme", "create_webhook_secret", (), {"tenant": "acme"}),
    ("webhook secret rotate acme", "rotate_webhook_secret", ("acme",), {}),
    ("webhook secret list", "list_webhook_secrets", (), None),
    ("webhook secret remove acme", "remove_webhook_secret", ("acme",), None),
    ("webhook deliveries", "list_webhook_deliveries", (), None),
    ("webhook redeliver evt_1", "redeliver_webhook", ("evt_1",), None),
    ("identity show", "show_identity", (), None),
]
"""A command, and the operation that does the same over HTTP: names in its path, and its body."""

OF_ONE_STATE = {
    *("id", "key", "token", "hint", "created_s", "changed_s", "expires_s", "revoked_s", "at_s", "sha256"),
    *("old_secret_until_s", "joined_s", "last_used_s", "secret", "rotated_s", "previous_until_s", "next_s"),
}
"""Facts that differ between two states, or between two moments."""


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path / "asked")
    prepare(made.store)
    yield made
    made.store.close()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    made = House(tmp_path / "state")  # the same keys
    prepare(made.store)
    made.store.close()
    return running(tmp_path / "state", monkeypatch)


def prepare(store: Store) -> None:
    """An agent that has joined, with a token that is active by the time of commands and of the house."""
    now_s = time.time()
    token, _ = store.tokens.create(3600, 2, ["*"], {}, now_s)
    store.agents.enrol(Enrolment(token.id_text, "gpu-7", b"7" * 32, "7", 4e9), now_s)
    note_failed_delivery(store)


def command_of(line: str, operation: Operation) -> ResourceCommand:
    (found,) = [
        command
        for command in operation.commands
        if command.name == line.split()[1 + line.startswith("webhook secret")]
    ]
    return found


def comparable(value: object) -> object:
    """With the names of all facts, and the values of those that two states have alike."""
    if isinstance(value, dict):
        return {name: "…" if name in OF_ONE_STATE else comparable(each) for name, each in value.items()}
    if isinstance(value, list):
        return sorted((comparable(each) for each in value), key=json.dumps)  # clocks differ, and so do orders
    return value


async def test_every_command_tells_as_json_what_the_admin_api_answers(house: House, run: Run) -> None:
    tokens = ["", ""]  # here, and over there
    for line, name, names, body in STORY:
        operation = OPERATIONS[name]
        result = run(*line.format(token=tokens[0]).split(), "--json")
        assert result.exit_code == 0, (line, result.output)
        told = json.loads(result.stdout)
        path = operation.path.replace(":path}", "}")
        for each in names:
            begin, end = path.index("{"), path.index("}") + 1
            path = path[:begin] + each.format(token=tokens[1]) + path[end:]
        status, answer, _ = await house.ask(operation.method, path, body=body)
        assert status == 200, (line, answer)
        table = command_of(line, operation).table
        found = answer if table is None else answer[table.member]
        assert comparable(told) == comparable(found), line
        if name == "create_token":
            tokens = [told["id"], answer["id"]]


def test_every_command_of_a_resource_that_may_be_asked_over_http_is_in_the_story() -> None:
    every = {
        f"{resource.within} {resource.name} {command.name}".strip()
        for resource in RESOURCES
        for operation in resource.operations
        for command in operation.commands
        if not operation.only_here
    }
    told = {" ".join(line.split()[: 2 + line.startswith("webhook secret")]) for line, *_ in STORY}
    assert told == every


def test_what_earlier_versions_told_of_a_new_token_is_told_still(run: Run) -> None:
    told = json.loads(run("token", "create", "--uses", "3", "--json").stdout)
    assert {"token", "id", "expires_s", "record", "state", "uses", "uses_allowed", "models", "labels"} <= set(
        told
    )
    assert told["record"].items() <= told.items()
    assert (told["uses"], told["uses_allowed"]) == (0, 3)


async def test_agents_that_are_connected_or_not_are_told_with_all_that_is_kept_of_them(house: House) -> None:
    _, found, _ = await house.ask("GET", "/admin/agents")
    _, kept, _ = await house.ask("GET", "/admin/enrolments")
    (one,), (record,) = found["agents"], kept["agents"]
    assert one.items() >= record.items()
    assert {"connected", "may_serve"} <= set(one)
