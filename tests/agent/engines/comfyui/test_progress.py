"""Progress of a prompt grows from 0 to 1 with the messages of newer and of older servers."""

import struct
from typing import Any

import pytest

from agent.engines.comfyui.progress import PromptProgress, read_preview

PROMPT: dict[str, Any] = {
    "1": {"class_type": "Load"},
    "2": {"class_type": "KSampler", "_meta": {"title": "Sampling"}},
    "3": {"class_type": "Decode"},
    "4": {"class_type": "Save"},
}


def test_older_servers_tell_the_node_and_its_steps() -> None:
    progress = PromptProgress(PROMPT)
    assert progress.feed("execution_start", {}) is None
    told = progress.feed("executing", {"node": "1"})
    assert told is not None
    assert (told.fraction, told.text) == (0.0, "Load")
    progress.feed("executing", {"node": "2"})
    told = progress.feed("progress", {"value": 5, "max": 10, "node": "2"})
    assert told is not None
    assert (told.fraction, told.text) == (0.375, "Sampling: 5 of 10")
    told = progress.feed("progress", {"value": 10, "max": 10})
    assert told is not None
    assert told.fraction == 0.5
    assert progress.feed("executing", {"node": None}) is None


def state(node: str, value: float, most: float, name: str = "running") -> dict[str, Any]:
    return {node: {"value": value, "max": most, "state": name, "display_node_id": node.partition(".")[0]}}


def test_newer_servers_tell_of_all_nodes_at_once_and_cached_ones_do_not_count() -> None:
    progress = PromptProgress(PROMPT)
    progress.feed("execution_cached", {"nodes": ["1", "3", "unknown"]})
    nodes = state("2", 3, 4)
    told = progress.feed("progress_state", {"nodes": nodes})
    assert told is not None
    assert (told.fraction, told.text) == (0.375, "Sampling: 3 of 4")
    told = progress.feed(
        "progress_state", {"nodes": state("2", 4, 4, "finished") | state("4", 1, 1, "finished")}
    )
    assert told is not None
    assert told.fraction == 1.0


def test_it_never_goes_back() -> None:
    progress = PromptProgress(PROMPT)
    progress.feed("progress_state", {"nodes": state("2", 9, 10)})
    told = progress.feed("progress_state", {"nodes": state("2", 1, 10) | state("2.0.1", 1, 2)})
    assert told is not None
    assert told.fraction == pytest.approx(0.225)


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("progress", {"value": "x", "max": None}),
        ("progress", {"value": 1, "max": 0}),
        ("progress_state", {"nodes": 5}),
        ("progress_state", {"nodes": {"1": 5}}),
        ("execution_cached", {"nodes": 5}),
        ("execution_cached", {"nodes": [{"id": "1"}, ["2"], None]}),
        ("other", {}),
    ],
)
def test_malformed_messages_say_nothing(kind: str, data: dict[str, Any]) -> None:
    told = PromptProgress(PROMPT).feed(kind, data)
    assert told is None or told.fraction == 0.0


def test_previews_are_read_with_and_without_metadata() -> None:
    jpeg, png = b"\xff\xd8...", b"\x89PNG..."
    bare = read_preview(struct.pack(">II", 1, 1) + jpeg)
    assert bare is not None
    assert (bare.type, bare.data) == ("image/jpeg", jpeg)
    described = read_preview(struct.pack(">II", 4, 2) + b"{}" + png)
    assert described is not None
    assert (described.type, described.data) == ("image/png", png)
    for other in (b"", struct.pack(">II", 3, 1) + jpeg, struct.pack(">II", 1, 9), struct.pack(">II", 4, 99)):
        assert read_preview(other) is None
