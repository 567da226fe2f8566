"""Processes of this host and of others are asked together, and others may ask those of this host."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from gateway.app.process_reads import (
    FOR_OTHERS,
    STARTING,
    ProcessReads,
    make_process_page,
    make_process_reads,
)
from gateway.cluster.process_reads import ProcessAnswers, RemoteProcesses
from gateway.domain.errors import ProcessSilent
from gateway.runtime.config import Settings
from gateway.runtime.workers.siblings import Json, Siblings
from gateway.storage import Store


class Elsewhere:
    """Processes on other hosts."""

    async def ask_all(self, question: str, **facts: Any) -> ProcessAnswers:
        return ProcessAnswers({"b": {"of": question}}, {"c": "no answer within 2 s"})

    def gone(self) -> dict[str, str]:
        return {"d": "it has not been heard of for 9 s"}


async def own(asked: Json) -> Json:
    return {"of": "h-1", **asked}


@pytest.fixture
async def siblings(tmp_path: Path) -> AsyncIterator[list[Siblings]]:
    made = [Siblings(tmp_path, name, ["h-0", "h-1"]) for name in ("h-0", "h-1")]
    made[1].answer("agents", own)
    for each in made:
        await each.start()
    yield made
    for each in made:
        each.close()


async def test_all_are_asked_and_each_that_does_not_answer_is_named(siblings: list[Siblings]) -> None:
    reads = ProcessReads("h-0", siblings[0], cast(RemoteProcesses, Elsewhere()))
    answers = await reads.ask_all("agents")
    assert answers.found == {"h-1": {"of": "h-1"}, "b": {"of": "agents"}}
    assert (answers.missing, answers.reasons) == (["c"], {"c": "no answer within 2 s"})
    assert reads.gone() == {"d": "it has not been heard of for 9 s"}
    siblings[1].close()
    assert (await reads.ask_all("agents")).reasons["h-1"] == STARTING


async def test_other_hosts_are_told_what_any_process_here_says_and_nothing_that_changes_something(
    siblings: list[Siblings],
) -> None:
    reads = ProcessReads("h-0", siblings[0], None)
    reads.answer("agents", own)
    reads.answer("metrics", own)
    mine, worker = reads.answerers("h-0"), reads.answerers("h-1")
    assert mine is not None
    assert worker is not None
    assert set(mine) == {"agents"}
    assert set(worker) == FOR_OTHERS
    assert await worker["agents"]({"x": "1"}) == {"of": "h-1", "x": "1"}
    assert reads.answerers("h-2") is None
    siblings[1].close()
    with pytest.raises(ProcessSilent, match="'h-1'"):
        await worker["agents"]({})


async def test_one_process_alone_asks_nobody_and_is_asked_by_nobody(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        assert make_process_reads(Settings(), store, None, None) is None
        assert make_process_page(store, None, None) is None
