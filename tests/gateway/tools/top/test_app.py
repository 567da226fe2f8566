"""The tables in a terminal of textual's own, before a staged gateway."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from textual.widgets import Static

from gateway.cli_support.gateway_client import GatewayClient
from gateway.tools.top.app import TopApp
from gateway.tools.top.dialogs import TextWindow
from gateway.tools.top.options import TopOptions
from gateway.tools.top.running import name_of
from gateway.tools.top.source import FleetSource
from gateway.tools.top.table import LiveTable
from tests.support.staged_gateway import KEY, StagedGateway, fleet

HOSTILE = "gpu[red]\x1b[31m模型"
REQUEST = {
    **{"id": "req_1", "process": "gateway", "at": 1790000000.0, "state": "answered", "status": 200},
    **{"model": "qwen-2.5-32b", "agent": "gpu-001", "total_s": 2.0, "queued_s": 0.0, "tokens_out": 60},
}
WORDS = {"/admin/requests/req_1": {"id": "req_1", "words": ["It did not wait.", f"It went to {HOSTILE}."]}}


class Terminal:
    """What a user sees of one run, and does."""

    def __init__(self, app: TopApp, pilot: Any) -> None:
        self.app, self.pilot = app, pilot
        self.table: Any = app.query_one(LiveTable)

    @property
    def lines(self) -> list[str]:
        """Of the table, its titles first."""
        return [self.table.line(y).rstrip() for y in range(self.table.size.height)]

    def text(self, name: str) -> str:
        """Of one of the lines around it."""
        return str(self.app.query_one(name, Static).content)

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def until(self, true: Callable[[], object]) -> None:
        async with asyncio.timeout(60):
            while not true():
                await self.pilot.pause(0.01)


@asynccontextmanager
async def top_of(
    stage: StagedGateway, size: tuple[int, int] = (80, 24), **options: Any
) -> AsyncIterator[Terminal]:
    """``trunkline top`` until the context is left."""
    source = FleetSource(GatewayClient(stage.url, KEY))
    news = source.news()
    app = TopApp(source, news, TopOptions(url=stage.url, **options), name_of(stage.url))
    app.first = await asyncio.to_thread(next, news)
    async with app.run_test(size=size) as pilot:
        yield Terminal(app, pilot)
    stage.cut()
    assert app.reader is not None
    await asyncio.to_thread(app.reader.join, 10)
    assert not app.reader.is_alive()


def staged(**more: Any) -> StagedGateway:
    recent = {"/admin/requests": {"requests": [REQUEST]}}
    return StagedGateway(fleet(30, 2) | more, recent | WORDS)


async def test_a_user_looks_at_all_tables_and_sorts_filters_pauses_and_asks_why() -> None:
    async with staged() as stage, top_of(stage) as shown:
        assert shown.lines[0].startswith("HOST▲")
        assert shown.lines[1].startswith("gpu-000")
        assert "60 deployments" not in shown.text("#sums"), "of a host that is away nothing is told"
        await shown.press("i")
        assert shown.lines[0].startswith("HOST▼")
        assert shown.lines[1].startswith("gpu-029")
        await shown.press("less_than_sign", "greater_than_sign", "greater_than_sign")
        assert "MODEL▲" in shown.lines[0]
        await shown.press("slash", *"gpu-03", "backspace", *"1", "enter")
        assert {line[:6] for line in shown.lines[1:] if line} == {"gpu-01"}
        await shown.press("escape", "2")
        assert {line.split()[0] for line in shown.lines[1:] if line} == {*fleet(30, 2)["models"]}
        await shown.press("tab")
        assert "UTIL" in shown.lines[0]
        await shown.press("p")
        stage.delta(at=1790000001.0, agents={"gpu-000": {"gpus": {"0": {"utilisation": 0.77}}}})
        await shown.until(lambda: shown.app.fleet.at_s == 1790000001.0)
        assert "paused" in shown.text("#head")
        assert "77%" not in shown.lines[1]
        await shown.press("p")
        assert "77%" in shown.lines[1]
        await shown.press("4")
        await shown.until(lambda: "req_1" in shown.lines[1])
        await shown.press("enter")
        window = shown.app.screen
        assert isinstance(window, TextWindow)
        await shown.until(lambda: "It did not wait." in window.shown)
        assert "It went to gpu[red]?[31m模型." in window.shown
        await shown.press("escape", "f", "f")
        assert "There is no such request" in "\n".join(shown.lines)
        await shown.press("question_mark")
        assert "TIME" in str(shown.app.export_screenshot())
        await shown.press("escape", "q")


async def test_the_cursor_stays_with_its_row_and_enter_opens_that() -> None:
    async with staged() as stage, top_of(stage, (120, 30), sort="-slots") as shown:
        await shown.press("down", "down", "down")
        row = shown.table.cursor_row
        stage.delta(at=1790000001.0, deployments={row.key: {"in_flight": 8, "slots": 8}, "new": {"slots": 1}})
        await shown.until(lambda: shown.app.fleet.at_s == 1790000001.0)
        await shown.pilot.pause()
        assert shown.table.cursor_row.key == row.key
        await shown.press("enter")
        assert isinstance(shown.app.screen, TextWindow)
        assert f"{row.facts['model']} at {row.facts['agent']}" in shown.app.screen.shown
        await shown.press("q", "r")
        assert shown.app.query_one("#filter").value == f"host:{row.facts['agent']} model:{row.facts['model']}"
        await shown.press("escape", "1", "end")
        assert shown.table.visible_rows[1:] == (len(shown.app.fleet.deployments),) * 2
        await shown.press("pageup", "home")
        assert shown.table.visible_rows[0] == 1
        await shown.pilot.click(LiveTable, offset=(2, 0))
        assert shown.lines[0].startswith("HOST▲")
        await shown.pilot.click(LiveTable, offset=(2, 3), times=2)
        await shown.until(lambda: isinstance(shown.app.screen, TextWindow))
        await shown.press("t")


async def test_a_gateway_that_goes_is_told_and_asked_again_behind_what_was_had() -> None:
    async with staged() as stage, top_of(stage, (60, 20)) as shown:
        stage.refused["/admin/events"] = (503, "The gateway is being started.")
        stage.cut()
        await shown.until(lambda: shown.app.lost is not None and shown.app.lost.status == 503)
        await shown.pilot.pause()
        assert "no connection" in shown.text("#head")
        assert "The gateway is being started. Asking again" in shown.text("#trouble")
        assert shown.lines[1].startswith("gpu-000")
        del stage.refused["/admin/events"]
        await shown.until(lambda: shown.app.lost is None)
        assert stage.last_ids == [None, "a1-1"]
        assert "live" in shown.text("#head")
        assert not shown.app.query_one("#trouble").display


async def test_hostile_names_and_a_fleet_without_agents_are_shown_plainly() -> None:
    nothing: dict[str, Any] = {"agents": {}, "deployments": {}, "models": {}}
    async with staged(**nothing) as stage, top_of(stage, (40, 10), light=True) as shown:
        assert "No agent is connected." in "\n".join(shown.lines)
        stage.delta(deployments={HOSTILE: {"agent": HOSTILE, "model": HOSTILE, "status": HOSTILE}})
        await shown.until(lambda: "gpu[red" in shown.lines[1])
        assert "\x1b" not in shown.lines[1]
        await shown.press("enter")
        assert isinstance(shown.app.screen, TextWindow)


async def test_of_what_was_not_told_the_gateway_is_asked() -> None:
    running = REQUEST | {"id": "req_2", "state": "running"}
    async with staged() as stage, top_of(stage, view="requests") as shown:
        stage.answers["/admin/requests"] = {"requests": [running]}
        stage.delta(at=1790000002.0, requests_left_out=3)
        await shown.until(lambda: any("req_2" in line for line in shown.lines))


@pytest.mark.parametrize(
    ("url", "name"), [("https://gw.example/v1", "gw.example"), ("http://[::1]:8700/", "[::1]:8700")]
)
def test_the_head_names_the_gateway(url: str, name: str) -> None:
    assert name_of(url) == name
