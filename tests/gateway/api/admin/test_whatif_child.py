"""The process of a what-if: what it says is read, and it ends with whoever reads."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gateway.api.admin import whatif_child
from gateway.api.admin.whatif_child import WhatIfRunner, WhatIfTask
from gateway.domain.errors import BadRequest, RecordNotFound, RequestError, StateUnavailable

TASK = WhatIfTask("run", {}, {}, 0.0, 1, None, [])
SAYS_PID = "import os, time; print('{\"progress\":%d}' % os.getpid(), flush=True); time.sleep(600)"


@pytest.fixture(autouse=True)
def child(monkeypatch: pytest.MonkeyPatch) -> Any:
    def program(text: str) -> None:
        monkeypatch.setattr(whatif_child, "CHILD", (sys.executable, "-S", "-c", text))

    return program


async def told(runner: WhatIfRunner) -> Sequence[dict[str, Any]]:
    async with contextlib.aclosing(runner.run(TASK)) as lines:
        return [line async for line in lines]


async def test_lines_are_told_up_to_the_result(child: Any, tmp_path: Path) -> None:
    child('import sys; sys.stdin.read(); print(\'{"progress":1}\\n{"result":2}\\nnonsense\')')
    assert await told(WhatIfRunner(tmp_path)) == [{"progress": 1}, {"result": 2}]


async def test_it_ends_with_whoever_reads(child: Any, tmp_path: Path) -> None:
    child(SAYS_PID)
    async with contextlib.aclosing(WhatIfRunner(tmp_path).run(TASK)) as lines:
        pid = (await anext(lines))["progress"]
        os.kill(pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_it_ends_when_it_takes_too_long(child: Any, tmp_path: Path) -> None:
    child("import time; time.sleep(600)")
    with pytest.raises(StateUnavailable, match=r"longer than 0\.2 s"):
        await told(WhatIfRunner(tmp_path, 0.2))


@pytest.mark.parametrize(
    ("code", "kind"),
    [("nothing_to_replay", RecordNotFound), ("invalid_value", BadRequest), ("too_large", StateUnavailable)],
)
async def test_what_it_refuses_is_an_error_of_the_request(
    child: Any, tmp_path: Path, code: str, kind: type[RequestError]
) -> None:
    child(f"""print('{{"error":{{"code":"{code}","message":"it is so","param":"add"}}}}')""")
    with pytest.raises(kind, match=r"It is so\."):
        await told(WhatIfRunner(tmp_path))


async def test_one_that_dies_is_said_to_have_died(child: Any, tmp_path: Path) -> None:
    child("raise SystemExit(3)")
    with pytest.raises(StateUnavailable, match="ended with 3"):
        await told(WhatIfRunner(tmp_path))


async def test_no_process_is_left_when_it_is_cancelled(child: Any, tmp_path: Path) -> None:
    child(SAYS_PID)
    pids: list[int] = []

    async def read() -> None:
        async with contextlib.aclosing(WhatIfRunner(tmp_path).run(TASK)) as lines:
            async for line in lines:
                pids.append(line["progress"])
                asyncio.get_running_loop().call_soon(task.cancel)

    task = asyncio.create_task(read())
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)
