"""SSH reverse tunnels behind nginx in the place of agents and gateway, with the same engines and links.

As good as one would set it up by hand: keep-alives every ten seconds on both ends, a loop that starts ``ssh``
again at once as autossh does, nginx without buffering and otherwise with its defaults (round robin,
``proxy_next_upstream error timeout``), but for ``max_fails=0``: with the default, one failure takes an engine
away for ten seconds, and with a fault every second soon all of them.
"""

import asyncio
import signal
import subprocess
import time
from pathlib import Path

from gateway.tools.quickstart.processes import Child
from shared.process.ports import free_port
from tests.chaos.house import ChaosHouse
from tests.chaos.town import Post, Town
from tests.support import programs
from tests.support.programs import program
from tests.support.proxy import FaultyProxy

PACKAGES = {"nginx": "nginx", "sshd": "openssh-server", "ssh": "openssh-client"}


def install() -> None:
    """Have nginx and OpenSSH. Raises SystemExit saying what to do where that cannot be done here."""
    problem = programs.install(PACKAGES)
    if problem is not None:
        raise SystemExit(f"the comparison needs them: {problem}")


class _Nginx(Child):
    """Stops in order on SIGQUIT, which is what a drain is for it."""

    def signal(self, number: int) -> None:
        super().signal(signal.SIGQUIT if number == signal.SIGTERM else number)


class PeerHouse(ChaosHouse):
    """See the module. What faults do to agents is done to the loops that hold the tunnels."""

    def __init__(self, directory: Path, town: Town, *, short_budgets: bool = True) -> None:
        super().__init__(directory, town, short_budgets=short_budgets)
        self._ssh_port = free_port()
        self._ports: dict[str, int] = {}
        """Where each engine appears beside nginx."""
        self._sshd: Child | None = None
        self.key = "nobody-asks"

    async def _start(self) -> None:
        for post in self.town.posts:
            self._start_engine(post)
            self._ports[post.name] = free_port()
        self._make_keys()
        self._start_sshd()
        self._write_nginx()
        self.start_gateway()
        for post in self.town.posts:
            await asyncio.to_thread(self._await_engine, post)
            proxy = FaultyProxy("127.0.0.1", self._ssh_port)
            self.proxies[post.name] = await self._exit.enter_async_context(proxy)
            self.start_agent(post.name)
        await self.until("everything is served", self.everything_is_served)

    async def _stop(self) -> None:
        await super()._stop()
        if self._sshd is not None:
            await asyncio.to_thread(self._sshd.stop)

    def _make_keys(self) -> None:
        Path("/run/sshd").mkdir(parents=True, exist_ok=True)
        for name in ("host", "client"):
            key = str(self.directory / f"{name}-key")
            command = [program("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f", key]
            subprocess.run(command, check=True)

    def _start_sshd(self) -> None:
        keys = self.directory / "authorized_keys"
        keys.write_text((self.directory / "client-key.pub").read_text())
        lines = [
            f"ListenAddress 127.0.0.1:{self._ssh_port}",
            f"HostKey {self.directory / 'host-key'}",
            f"AuthorizedKeysFile {keys}",
            "PidFile none",
            "UsePAM no",
            "StrictModes no",
            "PermitRootLogin prohibit-password",
            "MaxStartups 100",
            "ClientAliveInterval 10",
            "ClientAliveCountMax 2",
        ]
        config = self.directory / "sshd_config"
        config.write_text("\n".join(lines) + "\n")
        self._sshd = self._execute("sshd", program("sshd"), "-D", "-e", "-f", str(config))

    def _execute(self, name: str, *command: str) -> Child:
        return self._child(name, "tests.chaos.peer.execute", *command)

    def start_gateway(self) -> None:
        count = self.starts["nginx"] = self.starts.get("nginx", 0) + 1
        arguments = ("tests.chaos.peer.execute", program("nginx"), "-c", str(self.directory / "nginx.conf"))
        self.gateway = _Nginx("nginx", arguments, self.directory / f"nginx.{count}.log")

    def start_agent(self, name: str, token: str | None = None) -> None:
        """The loop that holds the tunnel of this engine."""
        engine = self.engines[name].url.rpartition(":")[2]
        options = {
            "StrictHostKeyChecking": "no",
            "UserKnownHostsFile": "/dev/null",
            "ExitOnForwardFailure": "yes",
            "ServerAliveInterval": "10",
            "ServerAliveCountMax": "2",
        }
        ssh = [program("ssh"), "-N", "-i", str(self.directory / "client-key")]
        ssh += ["-p", str(self.proxies[name].port)]
        ssh += [f"-o {option}={value}" for option, value in options.items()]
        ssh += ["-R", f"127.0.0.1:{self._ports[name]}:127.0.0.1:{engine}", "root@127.0.0.1"]
        loop = f"while true; do {' '.join(ssh)}; sleep 0.1; done"
        self.agents[name] = self._execute(f"{name}-tunnel", "bash", "-c", loop)

    def _write_nginx(self) -> None:
        upstreams = [
            f"upstream {model} {{ {' '.join(self._server(post) for post in self.town.of_model(model))} }}"
            for model in self.town.models
        ]
        text = f"""
            daemon off; worker_processes auto; pid {self.directory}/nginx.pid; error_log stderr error;
            worker_rlimit_nofile 8192;
            events {{ worker_connections 4096; }}
            http {{
                access_log off; client_body_temp_path {self.directory}/nginx-body;
                proxy_temp_path {self.directory}/nginx-proxy;
                {" ".join(upstreams)}
                server {{
                    listen 127.0.0.1:{self.port} ssl;
                    ssl_certificate {self._certificate}; ssl_certificate_key {self._certificate_key};
                    location / {{
                        proxy_pass http://$http_x_chaos_model;
                        proxy_http_version 1.1; proxy_set_header connection ""; proxy_buffering off;
                    }}
                }}
            }}"""
        (self.directory / "nginx.conf").write_text(text)

    def _server(self, post: Post) -> str:
        return f"server 127.0.0.1:{self._ports[post.name]} max_fails=0;"

    async def serving(self) -> bool:
        return (await self.get("/"))[0] != 0

    async def everything_is_served(self) -> bool:
        """Whether every tunnel is there and nginx listens."""
        for post in self.town.posts:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self._ports[post.name])
            except OSError:
                return False
            writer.close()
        return await self.serving()

    async def metrics(self) -> dict[str, float]:
        return {"time": time.monotonic()}
