"""What the agent and a model's server process agree on."""

from pathlib import Path
from typing import Any

import pytest

from agent.serve import Model
from agent.serve.options import (
    CannotServe,
    ReadyLine,
    ServerOptions,
    facts_of,
    line_of,
    parse,
    read_devices,
    read_line,
    worker_count,
)


def model(**attributes: Any) -> Model:
    kind: type[Model] = type("ImageClassifier", (Model,), attributes)
    return kind()


def test_options_survive_the_command_line() -> None:
    by_path = ServerOptions(spec="m:C", devices=("cuda:0", "cpu"), scratch=Path("/s"), socket=Path("/s/x"))
    by_port = ServerOptions(spec="m:C", devices=("auto",), scratch=Path("/s"), port=9)
    assert parse(by_path.arguments()) == by_path
    assert parse(by_port.arguments()) == by_port


@pytest.mark.parametrize(
    ("text", "devices"),
    [("0,1", ("cuda:0", "cuda:1")), ("cpu", ("cpu",)), ("auto", ("auto",)), ("cpu, mps", ("cpu", "mps"))],
)
def test_devices_are_numbers_of_gpus_or_names(text: str, devices: tuple[str, ...]) -> None:
    assert read_devices(text) == devices


@pytest.mark.parametrize("text", ["", "0,", "a b", "codec", "auto,cpu"])
def test_other_devices_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="devices are numbers of GPUs"):
        read_devices(text)


def test_lines_are_read_back_and_others_are_not_taken_for_lines() -> None:
    facts = ReadyLine(models=("a",), slots=4, devices=("cpu",))
    assert read_line(facts.line().decode()) == {
        "ready": {"models": ["a"], "slots": 4, "devices": ["cpu"], "port": None}
    }
    assert read_line(line_of("failed", "why").decode()) == {"failed": "why"}
    for line in ("INFO:model:x", '{"a": 1}', '{"ready": 1, "a": 2}', '{"ready"', "[1]", '{"ready": '):
        assert read_line(line) is None


def test_what_a_model_can_do_is_said_in_words() -> None:
    assert facts_of(model(capabilities=["image-classification"])).capabilities == ("image-classification",)
    assert facts_of(model(capabilities="rerank")).capabilities == ("rerank",)
    for said in (("two words",), (7,), tuple(f"c{number}" for number in range(40))):
        with pytest.raises(CannotServe, match="capabilities"):
            facts_of(model(capabilities=said))


def test_attributes_have_defaults() -> None:
    facts = facts_of(model())
    assert facts.names == ("image-classifier",)
    assert facts.paths == ("/predict",)
    assert (facts.max_batch, facts.slots, facts.workers) == (1, None, None)
    assert facts_of(model(routes=("/v1/embeddings", "/predict"))).paths == ("/predict", "/v1/embeddings")
    assert facts_of(model(models=("a", "b", "a"))).names == ("a", "b")


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({"max_batch": 0}, "max_batch is 0"),
        ({"max_batch": True}, "max_batch is True"),
        ({"max_wait_s": "1"}, "max_wait_s is '1'"),
        ({"timeout_s": 0}, "timeout_s is 0"),
        ({"timeout_s": float("nan")}, "timeout_s is nan"),
        ({"slots": 0}, "slots is 0"),
        ({"workers": 0}, "workers is 0"),
        ({"name": "a b"}, "cannot be offered"),
        ({"routes": ("v1",)}, "is no path"),
        ({"routes": ("/health",)}, "answered by the server itself"),
    ],
)
def test_attributes_that_cannot_be_are_named(attributes: dict[str, Any], words: str) -> None:
    with pytest.raises(CannotServe, match=words):
        facts_of(model(**attributes))


def test_the_number_of_workers_is_bounded() -> None:
    assert worker_count(7) == 7
    assert 1 <= worker_count(None) <= 4
