"""The gateway's wall clock jumps: nobody is sent away for good, and it is said once for each agent."""

import re
from pathlib import Path

import pytest
import structlog

import gateway as package
from shared.protocol.errors import ErrorCode, HandshakeRejected
from tests.gateway.fleet.agent_house import Gateway, Host, eventually, running_gateway

DAY_S = 86_400.0


class Clock:
    """The gateway's idea of the time of day."""

    def __init__(self, gateway: Gateway) -> None:
        self.ahead_s = 0.0
        right = gateway.agents._wall
        gateway.agents._wall = lambda: right() + self.ahead_s


async def refused(host: Host) -> HandshakeRejected:
    with pytest.raises(HandshakeRejected) as caught:
        await host.dial()
    return caught.value


async def test_a_jump_beyond_certificates_is_waited_out(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        clock, first, second = Clock(gateway), Host(gateway, "gpu-1"), Host(gateway, "gpu-2")
        for host in (first, second):
            await host.dial()
        clock.ahead_s = 91 * DAY_S
        with structlog.testing.capture_logs() as logs:
            for _ in range(3):
                for host in (first, second):
                    error = await refused(host)
                    assert (error.code, error.retry_after_s) == (ErrorCode.UNAUTHENTICATED, 60.0)
        lines = [line for line in logs if line["event"] == "certificate_out_of_date"]
        assert [line["agent"] for line in lines] == ["gpu-1", "gpu-2"]
        assert lines[0]["valid_from_s"] < lines[0]["valid_to_s"] < lines[0]["now_s"]
        clock.ahead_s = 0.0
        for host in (first, second):
            tunnel, _ = await host.dial()
            assert tunnel.open


async def test_certificates_renewed_by_a_clock_ahead_are_good_when_it_is_right_again(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        clock, host = Clock(gateway), Host(gateway)
        await host.dial()
        joined_with = host.certificate
        clock.ahead_s = 70 * DAY_S
        for _ in range(6):
            await host.dial()
        of_the_future = host.certificate
        assert of_the_future != joined_with
        clock.ahead_s = 0.0
        for certificate in (of_the_future, joined_with):
            host.certificate = certificate
            tunnel, _ = await host.dial()
            assert tunnel.welcome.certificate is None, "what it has lasts longer than a fresh one"


async def test_a_clock_that_was_behind_leaves_agents_that_came_meanwhile_what_is_good(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        clock, host = Clock(gateway), Host(gateway)
        await host.dial()
        clock.ahead_s = -400 * DAY_S
        for _ in range(6):
            await host.dial()
        clock.ahead_s = 0.0
        tunnel, _ = await host.dial()
        assert tunnel.open


@pytest.mark.parametrize("jump_s", [-400 * DAY_S, 400 * DAY_S])
async def test_a_jump_ends_no_tunnel(tmp_path: Path, jump_s: float) -> None:
    async with running_gateway(tmp_path) as gateway:
        clock, host = Clock(gateway), Host(gateway)
        tunnel, _ = await host.dial()
        clock.ahead_s = jump_s
        gateway.store.tokens.create(3600, 1, ("*",), {}, 0.0)
        seen = gateway.store.agents.list()[0].last_seen_s
        await eventually(lambda: gateway.store.agents.list()[0].last_seen_s != seen)
        assert tunnel.open
        assert len(gateway.agents._agents) == 1


ALLOWED = {
    "auth": "dates of certificates and join tokens are its business",
    "observability/audit": "when what is in the audit log was done",
    "api/admin": "when what is made over HTTP ends",
    "api/exchange/request_log": "when requests ended",
    "storage/acts": "when administrative acts were done",
    "api/exchange/request_tracing": "when spans and exemplars were",
    "app/records": "when requests arrived, for people who ask why",
    "tools/doctor": "this host's clock and dates of certificates are what it checks",
    "api/exchange/job_runs": "when a job's answer is kept until",
    "app/job_runner": "when jobs were made, are due and expire",
    "app/scaling": "days and weeks, of which forecasts are learnt, and events of a calendar",
    "scaling/hooks": "when a webhook was sent, which is signed",
    "jobs": "when files, jobs and deliveries were made, are due and expire",
    "app/cluster": "when this process was started, for people",
    "cluster/member": "epochs go on when a store has forgotten them; higher ones are all that counts",
    "cluster/peers": "each start of a process has a higher number",
    "cli": "so are those that an operator makes",
    "tools/quickstart": "",
    "fleet/endpoint": "dates of certificates, and when agents were last seen",
    "runtime/background_writer": "when models were last served",
    "fleet/registry": "when models were first served",
    "storage/administration/check": "compared with the clock of the store's server",
    "storage/sqlite/copies": "names and ages of backups",
    "storage/sqlite/database": "the clock that the processes of one host share",
    "storage/usage": "when batches of processes that ended are forgotten",
    "uplink/runner": "when the parent's requests ended",
    "quota": "the days and months of budgets",
}


def test_nothing_else_in_the_gateway_looks_at_the_wall_clock() -> None:
    root = Path(package.__file__).parent
    looks = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if re.search(r"\btime\.time\b|datetime\.now|utcnow|time_ns\(", path.read_text("utf-8"))
    }
    assert [look for look in sorted(looks) if not look.startswith(tuple(ALLOWED))] == []
