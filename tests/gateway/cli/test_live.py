"""``trunkline status``, ``models`` and ``drain`` against a server that says what a gateway says."""

import json
import socket
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from gateway.cli.live import register
from gateway.cli_support.gateway_client import GatewayClient, GatewayFailed
from tests.support.threaded_server import served_in_thread
from tests.support.tls import make_certificate

KEY = "sk-tl-secret"
AGENT = {
    "name": "gpu-1",
    "connected": True,
    "status": "READY",
    "draining": False,
    "streams": 2,
    "rtt_s": 0.012,
    "deployments": [{"model": "llama"}],
}
AWAY = {"name": "gpu-2", "connected": False}
MODEL = {
    "id": "llama",
    "ready": True,
    "loadable": 0,
    "in_flight": 2,
    "slots": 8,
    "waiting": 1,
    "deployments": [{"agent": "gpu-1"}],
}


class Server:
    """Answers by method and path; keeps what it was asked, and with which credentials."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, str], list[tuple[int, Any]]] = {
            ("GET", "/admin/agents"): [(200, {"agents": [AGENT, AWAY]})],
            ("GET", "/admin/models"): [(200, {"models": [MODEL]})],
            ("GET", "/admin/queue"): [(200, {"waiting": 1, "models": {"llama": 1}})],
        }
        self.asked: list[tuple[str, str, str | None]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                outer.asked.append((self.command, self.path, self.headers.get("authorization")))
                answers = outer.answers.get((self.command, self.path), [(404, {})])
                status, found = answers.pop(0) if len(answers) > 1 else answers[0]
                body = json.dumps(found).encode()
                self.send_response(status)
                if 300 <= status < 400:
                    self.send_header("location", found)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        for method in ("GET", "POST", "DELETE"):
            setattr(Handler, f"do_{method}", Handler.answer)
        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    with served_in_thread(made.server):
        yield made


def run(server: Server, *arguments: str, key: str = KEY) -> Result:
    app = typer.Typer()
    register(app)
    environment = {"TRUNKLINE_URL": server.url, "TRUNKLINE_KEY": key, "TERM": "dumb", "COLUMNS": "200"}
    return CliRunner().invoke(app, list(arguments), env=environment)


def test_status_shows_agents_and_how_much_runs_and_waits(server: Server) -> None:
    result = run(server, "status")
    assert result.exit_code == 0
    assert "1 of 2 agents connected, 2 requests run, 1 wait" in result.stderr
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[1:] == [["gpu-1", "ready", "2", "12.0", "ms", "llama"], ["gpu-2", "away"]]
    assert json.loads(run(server, "status", "--json").stdout)["agents"] == [AGENT, AWAY]
    assert {credentials for *_, credentials in server.asked} == {f"Bearer {KEY}"}


def test_status_shows_that_an_agent_which_is_away_is_held(server: Server) -> None:
    server.answers["GET", "/admin/agents"] = [(200, {"agents": [AWAY | {"draining": True}]})]
    assert run(server, "status").stdout.splitlines()[1].split() == ["gpu-2", "away,", "draining"]


def engine(name: str, status: str, **facts: Any) -> dict[str, Any]:
    return {"name": name, "status": status, "kind": "", "reason": "", "models": [], "loading": ""} | facts


@pytest.mark.parametrize(
    ("facts", "state", "engines"),
    [
        ({"status": "READY", "deployments": []}, "no models", []),
        (
            {"status": "READY", "deployments": [], "engines": [], "reason": "no engine is found"},
            "no engine",
            ["gpu-1 none no engine is found"],
        ),
        (
            {
                "status": "FAILED",
                "deployments": [],
                "engines": [engine("127.0.0.1-8000", "failed", reason="connection refused")],
            },
            "failed",
            ["gpu-1 127.0.0.1-8000 failed 0 connection refused"],
        ),
        (
            {
                "status": "READY",
                "deployments": [{"model": "demo"}],
                "engines": [
                    engine(
                        "torch", "loading", reason="reading the weights", loading="45 %, 12 s of about 27 s"
                    ),
                    engine("b", "failed", reason="\x1b[31mred\n"),
                ],
            },
            "loading",
            [
                "gpu-1 torch loading 0 reading the weights, 45 %, 12 s of about 27 s",
                "gpu-1 b failed 0 ?[31mred?",
            ],
        ),
        (
            {
                "status": "READY",
                "deployments": [{"model": "llama"}],
                "engines": [engine("vllm-8000", "loaded", kind="vllm", models=["llama"])],
            },
            "ready",
            ["gpu-1 vllm-8000 vllm loaded 1"],
        ),
    ],
)
def test_status_says_of_every_engine_how_it_is_and_why(
    server: Server, facts: dict[str, Any], state: str, engines: list[str]
) -> None:
    server.answers["GET", "/admin/agents"] = [(200, {"agents": [AGENT | facts, AWAY]})]
    lines = run(server, "status").stdout.splitlines()
    assert lines[1].startswith(f"gpu-1  {state}")
    assert [" ".join(line.split()) for line in lines[5:]] == engines


def test_models_shows_where_they_are_and_how_full(server: Server) -> None:
    assert run(server, "models").stdout.splitlines()[1].split() == ["llama", "ready", "2/8", "1", "gpu-1"]
    assert json.loads(run(server, "models", "--json").stdout) == [MODEL]


def test_drain_waits_until_nothing_runs_there(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []
    monkeypatch.setattr("gateway.cli.live.time.sleep", looks.append)
    server.answers["POST", "/admin/agents/gpu-1/drain"] = [(200, {"streams": 2})]
    idle = {**AGENT, "streams": 0}
    server.answers["GET", "/admin/agents"] = [
        (200, {"agents": [AGENT]}),
        (200, {"agents": [AGENT]}),
        (200, {"agents": [idle]}),
    ]
    result = run(server, "drain", "gpu-1")
    assert (result.exit_code, len(looks)) == (0, 2)
    assert "Nothing runs there any more" in result.stderr
    server.answers["DELETE", "/admin/agents/gpu-1/drain"] = [(200, {"streams": 0})]
    assert "gets work again" in run(server, "drain", "gpu-1", "--undo").stderr


def test_load_says_when_and_where(server: Server) -> None:
    path = "/admin/models/org/llama/load"
    answer = {"begun": True, "loaded": 1, "places": 3, "expected_s": 19.6}
    server.answers["POST", path] = [(200, answer)]
    result = run(server, "load", "org/llama", "--agent", "gpu-1", "--version", "v2")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "org/llama is to be loaded, in about 20 s; 1 of 3 places had it.\n"
    assert json.loads(run(server, "load", "org/llama", "--json").stdout) == answer
    server.answers["POST", path] = [(200, answer | {"begun": False})]
    assert "all 3 places" in run(server, "load", "org/llama").stderr


def test_evict_says_what_goes_when_and_what_stays(server: Server) -> None:
    going = [{"agent": "gpu-1", "running": 2}, {"agent": "gpu-2", "running": 0}]
    answer = {"deployments": going, "waiting": 5, "kept": ["oslo"]}
    server.answers["POST", "/admin/models/llama/evict"] = [(200, answer)]
    assert run(server, "evict", "llama").stderr.splitlines() == [
        "llama is unloaded at gpu-1, when its 2 requests are over.",
        "llama is unloaded at gpu-2.",
        "5 requests wait for it: it is loaded again for them.",
        "These gateways decide themselves: oslo.",
    ]
    assert json.loads(run(server, "evict", "llama", "--json").stdout) == answer
    refusal = {"error": {"message": "No agent that is connected has 'llama' loaded."}}
    server.answers["POST", "/admin/models/llama/evict"] = [(404, refusal)]
    result = run(server, "evict", "llama")
    assert (result.exit_code, "has 'llama' loaded" in result.stderr) == (1, True)


def test_an_agents_name_stays_one_part_of_the_path(server: Server) -> None:
    run(server, "drain", "../keys/x?", "--no-wait")
    assert server.asked[0][1] == "/admin/agents/..%2Fkeys%2Fx%3F/drain"


def test_certificates_to_trust_can_be_named(server: Server, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.server.socket = context.wrap_socket(server.server.socket, server_side=True)
    server.url = server.url.replace("http:", "https:")
    said = run(server, "models").stderr
    assert "its certificate is not trusted here" in said
    assert "with --ca-file" in said
    trusted = run(server, "models", "--ca-file", str(certificate))
    assert trusted.stdout.splitlines()[1].split() == ["llama", "ready", "2/8", "1", "gpu-1"]
    (tmp_path / "none.pem").write_text("none\n")
    for name, reason in (("none.pem", "it holds none in PEM"), ("missing.pem", "No such file")):
        refused = run(server, "status", "--ca-file", str(tmp_path / name))
        assert refused.exit_code == 2
        assert reason in " ".join(refused.stderr.replace("│", " ").split())


def test_what_the_gateway_refuses_is_told_and_fails(server: Server) -> None:
    message = "This takes the role 'viewer', and this key has none."
    server.answers["GET", "/admin/models"] = [(403, {"error": {"message": message}}), (500, "oops")]
    result = run(server, "models")
    assert (result.exit_code, result.stdout) == (1, "")
    assert message.removesuffix(".") in result.stderr
    assert "status 500" in run(server, "models").stderr


def test_the_key_goes_to_the_gateway_named_and_nowhere_else(server: Server) -> None:
    server.answers["GET", "/admin/models"] = [(302, f"{server.url}/elsewhere")]
    assert "status 302" in run(server, "models").stderr
    assert [path for _, path, _ in server.asked] == ["/admin/models"]


def test_a_key_is_not_sent_in_the_clear_and_never_shown(server: Server) -> None:
    for url in ("http://gateway.example.com", "ftp://127.0.0.1", "gateway.example.com"):
        with pytest.raises(GatewayFailed):
            GatewayClient(url, KEY)
    result = run(server, "models", key="sk-tl-bad\nkey")
    assert result.exit_code == 2
    assert "sk-tl-bad" not in result.output
    assert server.asked == []


def test_who_gives_no_key_is_told_how_to_make_one(server: Server) -> None:
    said = " ".join(run(server, "status", key="").stderr.replace("│", " ").split())
    assert "trunkline key create --name NAME --role viewer" in said
    assert "TRUNKLINE_KEY" in said
    assert server.asked == []


def test_a_gateway_that_is_away_is_a_failure(server: Server) -> None:
    with pytest.raises(GatewayFailed, match=r"at http://127.0.0.1:1: nobody listens there .*: does it run"):
        GatewayClient("http://127.0.0.1:1", KEY).get("agents")
    server.answers["GET", "/admin/models"] = [(200, [])]
    assert "does not answer as a gateway does" in run(server, "models").stderr


@pytest.mark.parametrize(
    "spoken", [b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{"]
)
def test_what_speaks_no_http_is_a_failure_in_one_line(server: Server, spoken: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def speak() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(4096)
                peer.sendall(spoken)

        speaking = threading.Thread(target=speak)
        speaking.start()
        with pytest.raises(GatewayFailed, match="cannot ask the gateway"):
            GatewayClient(f"http://127.0.0.1:{listener.getsockname()[1]}", KEY).get("agents")
        speaking.join()


def test_tls_at_a_plain_port_is_told_with_what_to_write(server: Server) -> None:
    with pytest.raises(
        GatewayFailed, match=f"speaks no TLS: write {server.url} if the gateway is on this host"
    ):
        GatewayClient(server.url.replace("http:", "https:"), KEY).get("agents")


def test_no_tls_at_a_tls_port_is_told_with_what_to_write(server: Server, tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*make_certificate(tmp_path))
    server.server.socket = context.wrap_socket(server.server.socket, server_side=True)
    instead = server.url.replace("http:", "https:")
    with pytest.raises(GatewayFailed, match=f"no plain HTTP: if the port speaks TLS, write {instead}"):
        GatewayClient(server.url, KEY).get("agents")


def test_a_proxy_of_the_environment_is_named_when_it_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://user:secret@127.0.0.1:1")
    with pytest.raises(GatewayFailed, match=r"the proxy 127\.0\.0\.1 refuses the connection") as failed:
        GatewayClient("https://gateway.example.com", KEY).get("agents")
    assert "secret" not in str(failed.value)


def test_another_program_that_answers_in_json_is_no_gateway(server: Server) -> None:
    for path in ("agents", "models"):
        server.answers["GET", f"/admin/{path}"] = [(200, {"detail": "hello"})]
    server.answers["POST", "/admin/agents/x/drain"] = [(200, {})]
    for arguments in (("status",), ("models",), ("drain", "x")):
        result = run(server, *arguments)
        assert (result.exit_code, result.stdout) == (1, "")
        assert "does not answer as a gateway does" in result.stderr


def test_a_name_that_is_no_text_reaches_the_gateway_as_its_bytes(server: Server) -> None:
    assert run(server, "drain", "gpu\udcff").exit_code == 1
    assert server.asked[0][1] == "/admin/agents/gpu%FF/drain"


@pytest.mark.parametrize("command", ["status", "models", "drain"])
def test_every_command_has_help_with_an_example_and_needs_a_key(server: Server, command: str) -> None:
    assert "Example:" in run(server, command, "--help").stdout
    assert run(server, command, *(["x"] if command == "drain" else []), key="").exit_code != 0


def test_status_shows_the_processes_of_a_gateway_that_has_several(server: Server) -> None:
    here = {"process": "h-0", "up": True, "state": "serving", "pid": 7, "requests": 3, "agents": 1}
    there = here | {"process": "i-0", "host": "i", "shared_limits": None}
    there["others"] = {"known_s": 61.25, "told_s": {"h-0": 3.0}}
    away = [{"process": "h-1", "up": False}, {"process": "j-0", "up": False, "why": "no answer within 2 s"}]
    server.answers["GET", "/admin/processes"] = [(200, {"processes": [here, there, *away]})]
    server.answers["GET", "/admin/queue"] = [(200, {"waiting": 1, "models": {}, "missing": ["h-1", "j-0"]})]
    shown = run(server, "status")
    assert shown.exit_code == 0
    lines = [line.split() for line in shown.output.splitlines()]
    assert ["h-0", "serving", "7", "3", "1"] in lines, "an earlier version does not tell its host"
    assert ["i-0", "i", "serving", "7", "3", "1", "61.2", "s", "ago"] in lines
    assert ["h-1", "away"] in lines
    assert "away: no answer within 2 s" in shown.output
    assert "they do not answer: h-1, j-0" in shown.output
    assert "have every limit for themselves (see --shared): i-0" in shown.output
    found = json.loads(run(server, "status", "--json").stdout)
    assert found["processes"] == [here, there, *away]


def test_status_says_where_limits_are_kept_together_and_who_cannot_reach_that(server: Server) -> None:
    def process(name: str, *, reachable: bool) -> dict[str, Any]:
        limits = {"store": "redis://limits:6379/0", "reachable": reachable}
        facts = {"host": "h", "state": "serving", "pid": 7, "requests": 3, "agents": 1}
        return {"process": name, "up": True, "shared_limits": limits, **facts}

    server.answers["GET", "/admin/processes"] = [(200, {"processes": [process("a", reachable=True)]})]
    said = "limits are kept together in redis://limits:6379/0, which"
    assert f"{said} answers" in run(server, "status").stderr
    both = [process("a", reachable=True), process("b", reachable=False)]
    server.answers["GET", "/admin/processes"] = [(200, {"processes": both})]
    assert f"{said} does not answer b" in run(server, "status").stderr


def test_status_of_a_gateway_that_cannot_tell_of_processes_is_shown_as_ever(server: Server) -> None:
    shown = run(server, "status")
    assert shown.exit_code == 0
    assert "PROCESS" not in shown.output
    server.answers["GET", "/admin/processes"] = [(500, {})]
    assert run(server, "status").exit_code == 1


def test_draining_with_move_has_streams_go_on_elsewhere_until_none_is_left(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.cli.live.POLL_S", 0.0)
    server.answers["POST", "/admin/agents/gpu-1/move"] = [(200, {"streams": 2, "moved": 1})]
    left = [{**AGENT, "streams": count} for count in (2, 1, 0)]
    server.answers["GET", "/admin/agents"] = [(200, {"agents": [each]}) for each in left]
    result = run(server, "drain", "gpu-1", "--move")
    assert result.exit_code == 0
    asked = [path for method, path, _ in server.asked if method == "POST"]
    assert asked == ["/admin/agents/gpu-1/move"] * 3
