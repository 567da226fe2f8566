"""An engine that somebody else started is restarted by the operator's command when it hangs."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from agent.engines.hang import LifeSigns
from agent.engines.process import RestartPolicy
from agent.engines.restart import SETTLED_LOOKS, CommandFailed, Restarter, run_command
from tests.agent.support.played_loading import settled
from tests.support.clock import ManualClock

COMMAND = ("restart", "engine")


class PlayedEngine:
    """It serves as ``is_up`` says; its ``signs`` say whether it answers."""

    name = "e"

    def __init__(self) -> None:
        self.is_up = True
        self.signs = LifeSigns()
        self.told: list[str] = []

    def life_signs(self) -> LifeSigns:
        return self.signs

    def serves(self) -> bool:
        return self.is_up

    async def refresh(self) -> None: ...

    def begin_restart(self, reason: str) -> None:
        self.told.append(reason)

    async def end_restart(self) -> None:
        self.told.append("serves")


class Site:
    """A restarter whose seconds are the test's."""

    def __init__(self, *, fails: bool = False, helps: bool = True) -> None:
        self.clock = ManualClock()
        self.engine = PlayedEngine()
        self.fails, self.helps = fails, helps
        self.runs: list[Sequence[str]] = []
        self.rests: list[float] = []
        self._wakes: asyncio.Queue[None] = asyncio.Queue()
        policy = RestartPolicy(most=2, hung_s=10.0, healthy_s=20.0)
        self.restarter = Restarter(
            self.engine, COMMAND, policy, None, 30.0, run=self.run, clock=self.clock, sleep=self.sleep
        )

    async def run(self, command: Sequence[str]) -> None:
        self.runs.append(command)
        if self.helps:
            self.engine.is_up, self.engine.signs = True, LifeSigns()
        if self.fails:
            raise CommandFailed("it ended with status 1: no such unit")

    async def sleep(self, seconds: float) -> None:
        self.rests.append(seconds)
        await self._wakes.get()
        self.clock.advance(seconds)

    async def pass_looks(self, count: int) -> None:
        for _ in range(count):
            self._wakes.put_nowait(None)
            await settled()

    def hang(self) -> None:
        self.engine.is_up = False
        self.engine.signs = LifeSigns(heard_s=self.clock(), unanswered=9)


async def test_a_hanging_engine_is_restarted_at_once_and_served_again() -> None:
    site = Site()
    task = asyncio.ensure_future(site.restarter.run())
    await site.pass_looks(5)
    assert site.engine.told == []
    site.hang()
    await site.pass_looks(10 + SETTLED_LOOKS)
    assert site.runs == [COMMAND]
    assert site.engine.told == [
        "the engine hangs: it has answered nothing for 10 s (it is being restarted)",
        "serves",
    ]
    task.cancel()


async def test_an_engine_that_never_served_is_not_restarted() -> None:
    site = Site()
    site.hang()
    task = asyncio.ensure_future(site.restarter.run())
    await site.pass_looks(100)
    assert site.runs == []
    task.cancel()


async def test_restarts_that_do_not_help_come_later_and_later() -> None:
    site = Site(helps=False, fails=True)
    task = asyncio.ensure_future(site.restarter.run())
    await settled()
    site.hang()
    with capture_logs() as logs:
        await site.pass_looks(10)
        while len(site.runs) < 4:
            await site.pass_looks(1)
    assert [rest for rest in site.rests if rest != 1.0] == [2.0, 300.0], "after one of 1 s"
    why = "the engine does not serve 30 s after it was restarted"
    assert site.engine.told[-2:] == [f"{why} (restarted in 300 s)", f"{why} (it is being restarted)"]
    said = [line["reason"] for line in logs if line["event"] == "the restart command failed"]
    assert said == ["it ended with status 1: no such unit"] * len(site.runs)
    task.cancel()


async def test_one_that_served_long_enough_since_is_restarted_at_once_again() -> None:
    site = Site()
    task = asyncio.ensure_future(site.restarter.run())
    await settled()
    for _ in range(2):
        site.hang()
        await site.pass_looks(10 + SETTLED_LOOKS)
        await site.pass_looks(25)
    assert len(site.runs) == 2
    assert set(site.rests) == {1.0}
    assert not any("restarted in" in told for told in site.engine.told)
    task.cancel()


async def test_the_command_is_run_without_a_shell_and_without_the_agents_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRUNKLINE_AGENT_JOIN", "secret")
    code = "import os, sys; open(sys.argv[1], 'w').write(os.environ.get('TRUNKLINE_AGENT_JOIN', 'none'))"
    await run_command((sys.executable, "-c", code, str(tmp_path / "a b;c")))
    assert (tmp_path / "a b;c").read_text() == "none"


async def test_why_the_command_failed_is_told() -> None:
    with pytest.raises(CommandFailed, match=r"it cannot be run: .*no/such/program"):
        await run_command(("/no/such/program",))
    with pytest.raises(CommandFailed, match=r"^it ended with status 3: unit not found$"):
        await run_command(("sh", "-c", "echo one; echo unit not found >&2; echo; exit 3"))
    with pytest.raises(CommandFailed, match=r"it did not end within 0\.05 s"):
        await run_command(("sleep", "60"), within_s=0.05)
