"""The peers: ours, the plain proxies, tunnels behind one of them, and the routers that pip installs.

Proxies and routers have no tunnel; they reach the engine directly, which ours never could.
"""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from shared.process.ports import free_port
from tests.bench.peers.stage import Peer, Running, Stage
from tests.bench.peers.tools import CACHE, version_of
from tests.bench.peers.workloads import MODEL
from tests.support import programs

PACKAGES = {"nginx": "nginx-light", "haproxy": "haproxy", "sshd": "openssh-server", "ssh": "openssh-client"}
"""Debian's, program → package."""
_BODY_BYTES = 4 * 2**30
"""The most that a gateway can be told to take."""
_BODIES = frozenset({"down", "up"})


def _direct(stage: Stage) -> Running:
    return Running(stage.engine_port, {})


# --- ours ---


def _ours(stage: Stage) -> Running:
    limits = {"TRUNKLINE_GATEWAY_HTTP__BODY_BYTES": str(_BODY_BYTES)}
    gateway = stage.house.gateway(environment=limits)
    key = gateway.key("bench")
    with stage.at_far_end():
        agent = stage.house.agent(gateway, f"http://127.0.0.1:{stage.engine_port}", "--slots", "1024")
    stage.house.wait_for_model(gateway, key, MODEL)
    return Running(gateway.port, {"gateway": gateway.child.pid, "agent": agent.pid}, key)


# --- what Debian has ---


def _nginx(stage: Stage, upstream_port: int) -> tuple[int, int]:
    """Its port and process, in front of what is at that port."""
    port, home = free_port(), stage.directory
    temporary = " ".join(
        f"{kind}_temp_path {home}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    text = f"""
        daemon off; worker_processes 1; pid {home}/nginx.pid; error_log {home}/nginx.err warn;
        worker_rlimit_nofile 20000;
        events {{ worker_connections 16384; }}
        http {{
            access_log off; {temporary}
            upstream engine {{
                server 127.0.0.1:{upstream_port}; keepalive 2048; keepalive_requests 10000000;
            }}
            server {{
                listen 127.0.0.1:{port} backlog=4096; keepalive_requests 10000000; tcp_nodelay on;
                client_max_body_size 0;
                location / {{
                    proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection "";
                    proxy_buffering off; proxy_request_buffering off; proxy_read_timeout 600s;
                }}
            }}
        }}"""
    command = (programs.program("nginx"), "-e", f"{home}/nginx.err", "-c", stage.write("nginx.conf", text))
    child = stage.execute("nginx", *command)
    stage.until_listening(port)
    return port, child.pid


def _nginx_alone(stage: Stage) -> Running:
    port, pid = _nginx(stage, stage.engine_port)
    return Running(port, {"nginx": pid})


def _haproxy(stage: Stage) -> Running:
    port = free_port()
    text = f"""
global
  nbthread 1
  maxconn 9000
defaults
  mode http
  timeout connect 5s
  timeout client 600s
  timeout server 600s
  option http-no-delay
  http-reuse always
frontend clients
  bind 127.0.0.1:{port}
  default_backend engine
backend engine
  server engine 127.0.0.1:{stage.engine_port} maxconn 9000
"""
    child = stage.execute(
        "haproxy", programs.program("haproxy"), "-db", "-f", stage.write("haproxy.cfg", text)
    )
    return Running(port, {"haproxy": child.pid})


def _ssh(cipher: str) -> Callable[[Stage], Running]:
    """A reverse tunnel with nginx in front of it; the cipher is OpenSSH's own choice if empty."""

    def start(stage: Stage) -> Running:
        Path("/run/sshd").mkdir(parents=True, exist_ok=True)
        for name in ("host", "client"):
            key = str(stage.directory / f"{name}-key")
            keygen = (programs.program("ssh-keygen"), "-qt", "ed25519", "-N", "", "-f", key)
            subprocess.run(keygen, check=True)
        stage.write("authorized_keys", (stage.directory / "client-key.pub").read_text())
        ssh_port, tunnel_port = free_port(), free_port()
        lines = [
            f"ListenAddress 127.0.0.1:{ssh_port}",
            f"HostKey {stage.directory}/host-key",
            f"AuthorizedKeysFile {stage.directory}/authorized_keys",
            *("PidFile none", "UsePAM no", "StrictModes no", "PermitRootLogin prohibit-password"),
        ]
        config = stage.write("sshd_config", "\n".join(lines) + "\n")
        server = stage.execute("sshd", programs.program("sshd"), "-D", "-e", "-f", config)
        stage.until_listening(ssh_port)
        options = [
            "StrictHostKeyChecking=no",
            "UserKnownHostsFile=/dev/null",
            "ExitOnForwardFailure=yes",
            "LogLevel=ERROR",
        ]
        options += [f"Ciphers={cipher}"] if cipher else []
        command = [
            programs.program("ssh"),
            "-NF",
            "none",
            "-i",
            f"{stage.directory}/client-key",
            "-p",
            str(ssh_port),
        ]
        command += [part for option in options for part in ("-o", option)]
        command += ["-R", f"127.0.0.1:{tunnel_port}:127.0.0.1:{stage.engine_port}", "root@127.0.0.1"]
        with stage.at_far_end():
            client = stage.execute("ssh", *command)
        stage.until_listening(tunnel_port)
        port, nginx = _nginx(stage, tunnel_port)
        return Running(port, {"nginx": nginx, "sshd": server.pid, "ssh": client.pid})

    return start


def _needs(*names: str, root: bool = False) -> Callable[[], str | None]:
    def missing() -> str | None:
        packages = programs.missing({name: PACKAGES[name] for name in names})
        if packages:
            return f"not installed; as root: apt-get install {' '.join(packages)}"
        return "its server logs in as root, and this is not root" if root and os.geteuid() else None

    return missing


# --- what pip has ---


def _python_of(package: str, module: str) -> str | None:
    """The interpreter that has it: one of its own below ``tests/.cache``, else ours."""
    own = CACHE / "peers" / package
    if any(own.glob(f"lib/python*/site-packages/{module}")):
        return str(own / "bin" / "python")
    return sys.executable if importlib.util.find_spec(module) is not None else None


def _pip(
    name: str, requirement: str, module: str, start: Callable[[Stage, str], Running], start_s: float
) -> Peer:
    home = f"tests/.cache/peers/{name}"
    advice = f"not installed; python3 -m venv {home} && {home}/bin/pip install '{requirement}'"

    def version() -> str:
        code = f"import importlib.metadata as m; print(m.version({name!r}))"
        return f"{name} {version_of(_python_of(name, module) or sys.executable, '-c', code)}"

    return Peer(
        name,
        lambda stage: start(stage, _python_of(name, module) or sys.executable),
        lambda: None if _python_of(name, module) else advice,
        version,
        start_s,
        _BODIES,
    )


def _router(module: str, *more: str) -> Callable[[Stage, str], Running]:
    def start(stage: Stage, python: str) -> Running:
        port, metrics = free_port(), free_port()
        command = ["-m", module, "--host", "127.0.0.1", "--port", str(port), "--policy", "round_robin"]
        command += [
            "--worker-urls",
            f"http://127.0.0.1:{stage.engine_port}",
            "--prometheus-port",
            str(metrics),
        ]
        child = stage.execute("router", python, *command, *more)
        return Running(port, {"router": child.pid})

    return start


def _litellm(stage: Stage, python: str) -> Running:
    port, key = free_port(), "sk-bench"
    text = f"""
model_list:
  - model_name: {MODEL}
    litellm_params:
      {{model: openai/{MODEL}, api_base: "http://127.0.0.1:{stage.engine_port}/v1", api_key: none}}
general_settings: {{master_key: {key}}}
"""
    command = [
        f"{Path(python).parent}/litellm",
        "--config",
        stage.write("litellm.yaml", text),
        "--num_workers",
        "1",
    ]
    command += ["--host", "127.0.0.1", "--port", str(port), "--telemetry", "False"]
    quiet = {"LITELLM_LOG": "ERROR", "LITELLM_MODE": "PRODUCTION"}
    child = stage.execute("litellm", *command, environment=quiet)
    return Running(port, {"litellm": child.pid}, key)


def _version(*command: str) -> Callable[[], str]:
    return lambda: version_of(programs.program(command[0]), *command[1:])


OURS = "trunkline"
DIRECT = "direct"
PEERS = (
    Peer(DIRECT, _direct),
    Peer(OURS, _ours, start_s=30.0),
    Peer("nginx", _nginx_alone, _needs("nginx"), _version("nginx", "-v")),
    Peer("haproxy", _haproxy, _needs("haproxy"), _version("haproxy", "-v")),
    Peer("ssh+nginx", _ssh(""), _needs("nginx", "sshd", "ssh", root=True), _version("ssh", "-V")),
    Peer("ssh-gcm+nginx", _ssh("aes128-gcm@openssh.com"), _needs("nginx", "sshd", "ssh", root=True)),
    _pip(
        *("sglang-router", "sglang-router", "sglang_router"),
        _router("sglang_router.launch_router", "--log-level", "warn", "--max-concurrent-requests", "8192"),
        60.0,
    ),
    _pip(
        "vllm-router",
        "vllm-router",
        "vllm_router",
        _router("vllm_router.launch_router", "--log-level", "warning"),
        60.0,
    ),
    _pip("litellm", "litellm[proxy]", "litellm", _litellm, 120.0),
)
"""In the order of the tables. ``direct`` is nobody in between: what others add is told against it."""
