"""How far the loading of a model is, as its process tells it."""

import orjson
import pytest

from agent.backends.torch_engine import main
from agent.backends.torch_engine.demo import DEMO_MODEL_DIR
from agent.backends.torch_engine.faults import ModelUnusable
from agent.backends.torch_engine.options import EngineOptions
from agent.backends.torch_engine.progress import EVERY_S, READING, LoadProgress
from tests.support.clock import ManualClock


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
    said.progress.at("importing")
    said.progress.at(READING, 0.25)
    assert said.told() == [("importing", None), (READING, 0.25)]


def test_weights_are_counted_and_told_now_and_then() -> None:
    said = Said()
    said.progress.at(READING)
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
