"""The command line of the engine process."""

from pathlib import Path

import pytest

from agent.backends.torch_engine.demo import DEMO_MODEL_DIR, DEMO_MODEL_NAME
from agent.backends.torch_engine.options import EngineOptions, locate, parse


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
        EngineOptions(model=Path("/m"), name="m", **change)  # type: ignore[arg-type]


def test_a_wrong_command_line_ends_with_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(["--model", "demo", "--port", "0", "--slots", "0"])
    assert caught.value.code == 2
    assert "slots" in capsys.readouterr().err
