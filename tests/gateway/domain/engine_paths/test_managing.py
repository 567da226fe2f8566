"""Paths that manage engines take a role, however they are written."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dispatch.request_heads import DeploymentNotPermitted, head_for
from gateway.domain.engine_paths import KINDS, BadRule, EnginePaths
from gateway.domain.engine_paths.managing import canonical_path
from gateway.domain.engine_paths.tables import TABLES
from gateway.domain.errors import Forbidden
from gateway.domain.request import Principal
from gateway.domain.scopes import AdminRole
from gateway.domain.surface import engine_target
from shared.protocol.messages import DeploymentState
from tests.gateway.fleet.fleet import Fleet, deployment

PATHS = EnginePaths()

MANAGING = [
    ("vllm", "POST", "/v1/load_lora_adapter"),
    ("vllm", "POST", "/sleep?level=2"),
    ("vllm", "POST", "/wake_up"),
    ("vllm", "POST", "/reset_prefix_cache"),
    ("vllm", "POST", "/start_profile"),
    ("vllm", "POST", "/collective_rpc"),
    ("vllm", "POST", "/pause"),
    ("vllm", "POST", "/update_weights"),
    ("vllm", "POST", "/init_weight_transfer_engine"),
    ("vllm", "GET", "/server_info"),
    ("sglang", "GET", "/flush_cache"),
    ("sglang", "POST", "/update_weights_from_disk"),
    ("sglang", "GET", "/get_weights_by_name"),
    ("sglang", "POST", "/release_memory_occupation"),
    ("sglang", "GET", "/start_profile"),
    ("sglang", "POST", "/abort_request"),
    ("sglang", "GET", "/get_server_info"),
    ("sglang", "PUT", "/set_internal_state"),
    ("sglang", "POST", "/dumper/dump"),
    ("llama.cpp", "POST", "/slots/0?action=erase"),
    ("llama.cpp", "GET", "/slots"),
    ("llama.cpp", "POST", "/props"),
    ("llama.cpp", "POST", "/lora-adapters"),
    ("llama.cpp", "POST", "/models/unload"),
    ("llama.cpp", "DELETE", "/models"),
    ("llama.cpp", "GET", "/cors-proxy?url=http://169.254.169.254/"),
    ("llama.cpp", "POST", "/tools"),
    ("ollama", "POST", "/api/pull"),
    ("ollama", "POST", "/api/push"),
    ("ollama", "POST", "/api/create"),
    ("ollama", "POST", "/api/copy"),
    ("ollama", "DELETE", "/api/delete"),
    ("ollama", "POST", "/api/blobs/sha256:00"),
    ("lmstudio", "POST", "/api/v1/models/load"),
    ("kserve", "POST", "/v2/repository/models/other/unload"),
    ("kserve", "POST", "/v2/repository/models/other/load"),
    ("kserve", "POST", "/v2/cudasharedmemory/region/a/register"),
    ("kserve", "POST", "/v2/logging"),
    ("kserve", "DELETE", "/models/other"),
    ("comfyui", "POST", "/interrupt"),
    ("comfyui", "POST", "/api/queue"),
    ("comfyui", "POST", "/free"),
    ("comfyui", "POST", "/history"),
    ("comfyui", "GET", "/manager/reboot"),
    ("tgi", "POST", "/admin/reload"),
    ("generic", "POST", "/v1/internal/model/load"),
    ("generic", "POST", "/load"),
]

PLAIN = [
    ("vllm", "POST", "/v1/chat/completions"),
    ("vllm", "GET", "/load"),
    ("vllm", "GET", "/is_sleeping"),
    ("vllm", "POST", "/tokenize"),
    ("sglang", "POST", "/generate"),
    ("sglang", "GET", "/get_model_info"),
    ("llama.cpp", "POST", "/completion"),
    ("llama.cpp", "GET", "/props"),
    ("llama.cpp", "GET", "/lora-adapters"),
    ("ollama", "POST", "/api/chat"),
    ("ollama", "POST", "/api/show"),
    ("ollama", "GET", "/api/tags"),
    ("tgi", "POST", "/generate_stream"),
    ("kserve", "POST", "/v2/models/m/infer"),
    ("kserve", "POST", "/v2/repository/index"),
    ("comfyui", "GET", "/queue"),
    ("comfyui", "POST", "/prompt"),
    ("comfyui", "GET", "/history/1"),
    ("generic", "POST", "/v1/models/half_plus_two:predict"),
    ("generic", "POST", "/v2/models/sleep/infer"),
    ("generic", "POST", "/v1/chat/completions"),
    ("generic", "GET", "/metrics"),
]


@pytest.mark.parametrize(("kind", "method", "path"), MANAGING)
def test_what_manages_an_engine_is_known_by_its_kind_and_by_none(kind: str, method: str, path: str) -> None:
    for each in (kind, "generic", "", "an-engine-of-the-future"):
        assert PATHS.manages(each, method, path)


@pytest.mark.parametrize(("kind", "method", "path"), PLAIN)
def test_what_only_asks_is_for_everybody(kind: str, method: str, path: str) -> None:
    for each in (kind, "generic"):
        assert not PATHS.manages(each, method, path)


def test_an_engine_that_is_taken_for_another_kind_is_held_to_all_tables() -> None:
    for kind in KINDS:
        for _, method, path in MANAGING:
            assert PATHS.manages(kind, method, path)
        for _, method, path in PLAIN:
            assert not PATHS.manages(kind, method, path)


WRITTEN = [
    "/API/Delete",
    "/api/delete/",
    "/%61pi/d%65lete",
    "/%2561pi/delete",
    "/api/delete;x=1",
    "/api;v=2/delete",
    "/api/delete%20",
    "/api/dele%EF%BD%94e",
    "/mounted/here/api/delete",
]


@pytest.mark.parametrize("written", WRITTEN)
def test_however_it_is_written_that_passes_at_all(written: str) -> None:
    target = engine_target(f"/engines/m{written}")
    assert PATHS.manages("ollama", "DELETE", target.path)


@given(
    st.sampled_from([path.partition("?")[0] for _, _, path in MANAGING]),
    st.data(),
)
def test_neither_case_nor_escapes_nor_slashes_hide_a_path(path: str, data: st.DataObject) -> None:
    written = ""
    for character in path:
        choice = data.draw(st.integers(0, 4))
        if character == "/":
            written += data.draw(st.sampled_from(["/", "//", "/./", "/;a/"]))
        elif choice == 0:
            written += f"%{ord(character):02X}"
        elif choice == 1:
            written += f"%25{ord(character):02x}"
        elif choice == 2:
            written += character.upper()
        else:
            written += character
    assert canonical_path(written) == path


def test_a_method_that_stands_for_another_counts_as_that() -> None:
    assert not PATHS.manages("llama.cpp", "GET", "/props")
    assert PATHS.manages("llama.cpp", "GET", "/props", overridden=True)
    assert PATHS.manages("llama.cpp", "GET", "/props?_method=POST")
    assert PATHS.manages("sglang", "HEAD", "/flush_cache")


def test_a_path_of_countless_segments_is_taken_for_one_that_manages() -> None:
    assert PATHS.manages("vllm", "POST", "/a" * 4000)


def test_settings_add_paths_and_let_paths_go() -> None:
    paths = EnginePaths(
        manage={"*": ["/my/switch"], "vllm": ["POST /tune/**"]}, allow={"llama.cpp": ["GET /slots"]}
    )
    assert paths.manages("ollama", "GET", "/my/switch")
    assert paths.manages("vllm", "POST", "/tune/a/b")
    assert not paths.manages("vllm", "GET", "/tune/a/b")
    assert not paths.manages("sglang", "POST", "/tune/a/b")
    assert not paths.manages("llama.cpp", "GET", "/slots")
    assert paths.manages("llama.cpp", "POST", "/slots/0")
    assert paths.manages("llama.cpp", "GET", "/elsewhere/slots"), "what is let go is one path"


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        ({"vlm": ["/a"]}, "'vlm' is no kind"),
        ({"vllm": ["a"]}, "'a' is no rule"),
        ({"vllm": ["post /a"]}, "is no rule"),
        ({"vllm": ["TRACE /a"]}, "TRACE is none of"),
        ({"vllm": ["/a?b"]}, "is no rule"),
        ({"vllm": ["/**"]}, "stands alone at the end"),
        ({"vllm": ["/a/**/b"]}, "stands alone at the end"),
        ({"vllm": ["/"]}, "stands alone at the end"),
    ],
)
def test_a_wrong_rule_is_refused_saying_why(rules: dict[str, list[str]], says: str) -> None:
    with pytest.raises(BadRule, match=says.replace("*", r"\*")):
        EnginePaths(manage=rules)
    with pytest.raises(BadRule, match=says.replace("*", r"\*")):
        EnginePaths(allow=rules)


def test_every_table_is_made_of_rules() -> None:
    EnginePaths(manage=TABLES)


# --- Held against requests


def serving(kind: str, model: str = "m") -> DeploymentState:
    return DeploymentState(f"d-{model}-{kind}", model, routes=("chat", "any"), slots=1, kind=kind)


def managing(fleet: Fleet, path: str = "/api/delete", role: AdminRole | None = None, **more: Any) -> Any:
    request = fleet.request(route="any", principal=Principal("k", "key", "tenant", role=role), **more)
    request.method, request.path = "DELETE", path
    return request


def test_a_plain_key_is_refused_and_nothing_reaches_the_agent() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", serving("ollama"))
    for role in (None, AdminRole.VIEWER):
        client = fleet.submit(managing(fleet, role=role))
        assert isinstance(client.error, Forbidden)
        assert client.error.code == "role_required"
        assert "takes the role 'operator'" in client.error.message
    assert not agent.streams


@pytest.mark.parametrize("role", [AdminRole.OPERATOR, AdminRole.ADMIN])
def test_an_operators_key_manages(role: AdminRole) -> None:
    fleet = Fleet()
    agent = fleet.connect("a", serving("ollama"))
    fleet.submit(managing(fleet, role=role))
    assert [stream.head.path for stream in agent.streams] == ["/api/delete"]


def test_an_agent_that_tells_no_kind_is_taken_for_every_kind() -> None:
    fleet = Fleet()
    fleet.connect("a", deployment(routes=("any",)))
    assert isinstance(fleet.submit(managing(fleet)).error, Forbidden)


def test_a_model_of_two_kinds_is_held_to_the_rules_of_both() -> None:
    fleet = Fleet()
    fleet.dispatcher.set_engine_paths(EnginePaths(manage={"ollama": ["/of/ollama"]}))
    fleet.connect("a", serving("vllm"))
    assert fleet.submit(managing(fleet, "/of/ollama")).exchange is not None
    fleet.connect("b", serving("ollama"))
    assert isinstance(fleet.submit(managing(fleet, "/of/ollama")).error, Forbidden)


def test_a_kind_that_comes_later_gets_nothing_that_manages_it() -> None:
    fleet = Fleet()
    fleet.connect("a", serving("vllm"))
    fleet.connect("b", serving("comfyui"))
    vllm = fleet.session(fleet.agents[0]).deployments["d-m-vllm"]
    comfyui = fleet.session(fleet.agents[1]).deployments["d-m-comfyui"]
    request = managing(fleet, "/of/comfyui")
    request.barred = EnginePaths(manage={"comfyui": ["/of/comfyui"]}).bars
    assert head_for(request, vllm, 0.0).path == "/of/comfyui"
    with pytest.raises(DeploymentNotPermitted):
        head_for(request, comfyui, 0.0)


def test_settings_may_ask_for_another_role_or_for_none() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", serving("ollama"))
    fleet.dispatcher.set_engine_paths(EnginePaths(AdminRole.ADMIN))
    assert isinstance(fleet.submit(managing(fleet, role=AdminRole.OPERATOR)).error, Forbidden)
    fleet.dispatcher.set_engine_paths(EnginePaths(None))
    fleet.submit(managing(fleet))
    assert len(agent.streams) == 1


def test_routes_that_are_built_in_are_not_looked_at() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", serving("ollama"))
    request = fleet.request()
    request.path = "/api/delete"
    fleet.submit(request)
    assert len(agent.streams) == 1


@pytest.mark.parametrize(
    "path",
    [
        "/v1/models/half:predict",
        "/v1/models/half/versions/2:predict",
        "/predictions/resnet",
        "/generate_stream",
        "/v2/models/iris/infer",
    ],
)
def test_what_other_servers_are_asked_for_manages_nothing(path: str) -> None:
    target = engine_target(f"/engines/half{path}")
    assert (target.model, target.path) == ("half", path)
    assert not PATHS.manages("generic", "POST", target.path)
