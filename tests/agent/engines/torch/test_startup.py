"""The command line of the engine process, and what it says of its loading."""

import asyncio
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from agent.engines.torch import __main__ as main
from agent.engines.torch.demo import DEMO_MODEL_DIR, DEMO_MODEL_NAME
from agent.engines.torch.errors import ModelUnusable
from agent.engines.torch.startup import (
    EVERY_S,
    READING,
    EngineFacts,
    EngineOptions,
    LoadProgress,
    locate,
    parse,
)
from tests.support.clock import ManualClock


@pytest.mark.parametrize(
    "options",
    [
        EngineOptions(model=Path("/m/x"), name="x", socket=Path("/tmp/s"), exit_with_parent=True),
        EngineOptions(
            model=Path("/m/x"),
            name="y z",
            port=0,
            slots=3,
            queue=0,
            max_context=64,
            threads=2,
            memory_bytes=9,
        ),
        EngineOptions(model=Path("/m/x"), name="x", socket=Path("/tmp/s"), device="cpu", dtype="bfloat16"),
    ],
)
def test_options_survive_the_command_line(options: EngineOptions) -> None:
    assert parse(options.arguments()) == options


def test_demo_is_the_packages_own_model() -> None:
    assert locate("demo") == (DEMO_MODEL_DIR, DEMO_MODEL_NAME)
    assert locate("/models/small") == (Path("/models/small"), "small")


@pytest.mark.parametrize("change", [{"slots": 0}, {"queue": -1}, {"device": "tpu"}, {"dtype": "int8"}])
def test_impossible_options_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        EngineOptions(model=Path("/m"), name="m", **change)


def test_a_wrong_command_line_ends_with_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(["--model", "demo", "--port", "0", "--slots", "0"])
    assert caught.value.code == 2
    assert "slots" in capsys.readouterr().err


async def test_a_stop_right_behind_the_ready_line_is_heard(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    facts = EngineFacts(
        model="x", routes=("chat",), slots=1, queue=1, context_tokens=64, device="cpu", created=0
    )
    engine: Any = SimpleNamespace(facts=facts, failure=None, start=lambda failed: None)
    served = SimpleNamespace(app=lambda: None)
    monkeypatch.setattr("agent.engines.torch.http.EngineHTTP", lambda engine, key: served)
    options = EngineOptions(model=Path("/m/x"), name="x", socket=tmp_path / "s")
    said: list[bytes] = []

    def say(line: bytes) -> None:
        said.append(line)
        os.kill(os.getpid(), signal.SIGTERM)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        async with asyncio.timeout(30.0):
            assert await main._serve(engine, options, say) == 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert said == [facts.line()]
    assert not (tmp_path / "s").exists()


class Said:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.lines: list[bytes] = []
        self.progress = LoadProgress(self.lines.append, self.clock)

    def told(self) -> list[tuple[str, float | None]]:
        assert all(line.endswith(b"\n") for line in self.lines)
        return [
            (told["step"], told["progress"])
            for told in (orjson.loads(line)["loading"] for line in self.lines)
        ]


def test_each_step_is_told_at_once() -> None:
    said = Said()
    said.progress.report("importing")
    said.progress.report(READING, 0.25)
    assert said.told() == [("importing", None), (READING, 0.25)]


def test_weights_are_counted_and_told_now_and_then() -> None:
    said = Said()
    said.progress.report(READING)
    taken = []
    for item in said.progress.bar(
        list, ({f"w{n}": n for n in range(10)}.items(),), {"desc": "Loading weights"}
    ):
        taken.append(item)
        said.clock.advance(EVERY_S / 2)
    assert len(taken) == 10
    assert said.told() == [(READING, None), *((READING, share) for share in (0.2, 0.4, 0.6, 0.8))]


def test_bars_without_items_or_without_an_end_are_left_as_they_are() -> None:
    said = Said()
    assert said.progress.bar(dict, (), {"total": 3}) == {"total": 3}
    said.clock.advance(60.0)
    assert list(said.progress.bar(list, (iter("ab"),), {})) == ["a", "b"]
    assert said.lines == []


def test_a_package_that_cannot_be_imported_is_told_in_one_line_and_not_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(options: EngineOptions, progress: LoadProgress) -> None:
        raise ImportError("libcudart.so.12: cannot open shared object file")

    monkeypatch.setattr(main, "_load_by", broken)
    with pytest.raises(ModelUnusable, match=r"pip install 'trunkline\[torch\]' \(libcudart"):
        main._load(EngineOptions(model=DEMO_MODEL_DIR, name="m"), Said().progress)
