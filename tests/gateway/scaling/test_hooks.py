"""A command and a webhook are told of changes, in time and number bounded."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import structlog

from gateway.domain.webhooks import AttemptResult
from gateway.scaling import hooks
from gateway.scaling.hooks import ATTEMPTS, HookSettings, ScalingHooks
from gateway.scaling.observation import SeenReplica
from gateway.scaling.verdict import ModelVerdict, class_verdict
from gateway.scheduling.scaling.data import ClassFacts
from gateway.storage.errors import StateUnwritable
from tests.gateway.scaling.logged import until
from tests.gateway.scheduling.scaling.facts import L4

URL = "https://scaler.example/replicas"


def verdict(model: str = "m") -> ModelVerdict:
    replicas = [SeenReplica("gpu-1", "l4", 8, True, remaining_s=4.0)]
    return ModelVerdict(model, "because", True, 0, 0, {"l4": class_verdict(L4, 3, 3, 0.0, 0.0, replicas)})


class Receiver:
    """Takes webhooks; answers what it was told to."""

    def __init__(self, *answers: AttemptResult) -> None:
        self.answers = list(answers)
        self.got: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.arrived = asyncio.Event()

    async def send(self, url: str, headers: dict[str, str], body: bytes) -> AttemptResult:
        self.got.append((url, headers, orjson.loads(body)))
        self.arrived.set()
        return self.answers.pop(0) if self.answers else AttemptResult(200)


@asynccontextmanager
async def running(found: ScalingHooks) -> AsyncIterator[list[Any]]:
    with structlog.testing.capture_logs() as logs:
        task = asyncio.ensure_future(found.run())
        yield logs
        task.cancel()


def webhooks(
    receiver: Receiver,
    *,
    owns: bool = True,
    secrets: tuple[str, ...] = ("whsec_YWJj",),
    retell_s: float = 1e6,
) -> ScalingHooks:
    settings = HookSettings(webhook=URL, retry_s=0.0, retell_s=retell_s)
    return ScalingHooks(settings, lambda: owns, receiver, lambda at_s: secrets, lambda: 1000.0)


def commands(*words: str, timeout_s: float = 60.0) -> ScalingHooks:
    return ScalingHooks(HookSettings(words, timeout_s=timeout_s, retry_s=0.0), lambda: True)


async def test_a_webhook_is_sent_signed_with_what_changed_and_what_each_replica_costs() -> None:
    receiver = Receiver()
    told = webhooks(receiver)
    async with running(told) as logs:
        told.changed(verdict(), "l4", 1, 3)
        assert (await until(logs, "scaling_hook_told"))["to"] == 3
    ((url, headers, said),) = receiver.got
    assert url == URL
    assert headers["webhook-signature"].startswith("v1,")
    assert (said["model"], said["class"], said["from"], said["to"], said["why"]) == (
        "m",
        "l4",
        1,
        3,
        "because",
    )
    assert said["replicas"] == [{"agent": "gpu-1", "running": 0, "remaining_s": 4.0, "cost": 0}]


async def test_what_fails_is_tried_again_and_then_logged() -> None:
    receiver = Receiver(*[AttemptResult(503)] * ATTEMPTS)
    told = webhooks(receiver)
    async with running(told) as logs:
        told.changed(verdict(), "l4", 1, 3)
        assert "503" in (await until(logs, "scaling_hook_failed"))["error"]
    assert len(receiver.got) == ATTEMPTS


async def test_what_failed_each_time_is_told_again_until_it_succeeds() -> None:
    receiver = Receiver(*[AttemptResult(503)] * (2 * ATTEMPTS))
    told = webhooks(receiver, retell_s=0.001)
    async with running(told) as logs:
        told.changed(verdict(), "l4", 1, 3)
        await until(logs, "scaling_hook_told")
    assert len([each for each in logs if each["event"] == "scaling_hook_failed"]) == 2
    assert [(said["from"], said["to"]) for _, _, said in receiver.got] == [(1, 3)] * (2 * ATTEMPTS + 1)
    assert not told._failed


async def test_a_change_after_a_failure_is_told_with_it_as_one() -> None:
    receiver = Receiver(*[AttemptResult(503)] * ATTEMPTS)
    told = webhooks(receiver)
    async with running(told) as logs:
        told.changed(verdict(), "l4", 1, 3)
        await until(logs, "scaling_hook_failed")
        told.changed(verdict(), "l4", 3, 2)
        await until(logs, "scaling_hook_told")
    assert [receiver.got[-1][2][name] for name in ("from", "to")] == [1, 2]
    assert not told._failed


async def test_a_change_while_another_one_fails_is_told_with_it_as_one() -> None:
    class Changing(Receiver):
        async def send(self, url: str, headers: dict[str, str], body: bytes) -> AttemptResult:
            if not self.got:
                told.changed(verdict(), "l4", 3, 5)
            return await super().send(url, headers, body)

    receiver = Changing(AttemptResult(503))
    told = webhooks(receiver)
    async with running(told) as logs:
        told.changed(verdict(), "l4", 1, 3)
        await until(logs, "scaling_hook_told")
    assert [(said["from"], said["to"]) for _, _, said in receiver.got] == [(1, 3), (1, 5)]
    assert not told._failed


async def test_who_takes_over_tells_what_is_wanted_and_not_there() -> None:
    receiver, owner = Receiver(), [False]
    told = ScalingHooks(HookSettings(webhook=URL), lambda: owner[0], receiver, lambda at_s: ("whsec_YWJj",))
    there = ClassFacts("h100", 8, 1.0, ready=2)
    both = verdict()
    both = replace(both, classes={**both.classes, "h100": class_verdict(there, 2, 2, 0.0, 0.0, [])})
    async with running(told) as logs:
        told.decided({"m": both})
        owner[0] = True
        told.decided({"m": both})
        told.decided({"m": both})
        await until(logs, "scaling_hook_told")
    ((_, _, said),) = receiver.got
    assert (said["class"], said["from"], said["to"]) == ("l4", L4.ready, 3)


async def test_what_another_process_acts_on_now_is_not_told_again() -> None:
    receiver, owner = Receiver(*[AttemptResult(503)] * ATTEMPTS), [True]
    told = ScalingHooks(
        HookSettings(webhook=URL, retry_s=0.0, retell_s=0.001),
        lambda: owner[0],
        receiver,
        lambda at_s: ("whsec_YWJj",),
    )
    async with running(told) as logs:
        told.changed(verdict(), "l4", 1, 3)
        owner[0] = False
        await until(logs, "scaling_hook_failed")
        while told._failed:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert len(receiver.got) == ATTEMPTS


async def test_without_a_secret_nothing_is_sent() -> None:
    receiver = Receiver()
    told = webhooks(receiver, secrets=())
    async with running(told) as logs:
        told.changed(verdict(), "l4", 1, 3)
        assert "no secret" in (await until(logs, "scaling_hook_failed"))["error"]
    assert receiver.got == []


async def test_a_webhook_that_cannot_be_signed_while_the_store_is_away_is_tried_again() -> None:
    receiver, away = Receiver(), [True]

    def signers(at_s: float) -> tuple[str, ...]:
        if away and away.pop():
            raise StateUnwritable("the database is away")
        return ("whsec_YWJj",)

    told = ScalingHooks(HookSettings(webhook=URL, retry_s=0.0), lambda: True, receiver, signers)
    told.changed(verdict(), "l4", 1, 3)
    with structlog.testing.capture_logs():
        task = asyncio.ensure_future(told.run())
        arrived = asyncio.ensure_future(receiver.arrived.wait())
        await asyncio.wait([task, arrived], return_when=asyncio.FIRST_COMPLETED)
        assert not task.done(), task.exception()
        task.cancel()
    assert [said["to"] for _, _, said in receiver.got] == [3]


async def test_changes_while_one_is_told_are_told_as_one() -> None:
    receiver = Receiver()
    told = webhooks(receiver)
    told.changed(verdict(), "l4", 1, 3)
    told.changed(verdict(), "l4", 3, 5)
    async with running(told) as logs:
        await until(logs, "scaling_hook_told")
    assert [(said["from"], said["to"]) for _, _, said in receiver.got] == [(1, 5)]


async def test_only_the_process_that_acts_for_all_tells() -> None:
    told = webhooks(Receiver(), owns=False)
    told.changed(verdict(), "l4", 1, 3)
    assert not told._waiting


async def test_more_changes_than_may_wait_are_dropped_and_logged(monkeypatch: Any) -> None:
    monkeypatch.setattr(hooks, "MOST_WAITING", 1)
    told = webhooks(Receiver())
    with structlog.testing.capture_logs() as logs:
        told.changed(verdict("m"), "l4", 1, 3)
        told.changed(verdict("n"), "l4", 1, 3)
    assert [each["event"] for each in logs] == ["scaling_hook_dropped"]


async def test_a_command_gets_the_change_on_its_input(tmp_path: Path) -> None:
    out = tmp_path / "out"
    told = commands(sys.executable, "-c", f"import sys; open({str(out)!r}, 'w').write(sys.stdin.read())")
    async with running(told) as logs:
        told.changed(verdict(), "l4", 1, 3)
        await until(logs, "scaling_hook_told")
    assert orjson.loads(out.read_bytes())["to"] == 3


async def test_what_a_command_says_when_it_fails_is_logged_and_its_input_need_not_be_read() -> None:
    told = commands("sh", "-c", "exec <&-; echo quota exceeded >&2; exit 3")
    async with running(told) as logs:
        told.changed(verdict(), "l4", 1, 3)
        error = (await until(logs, "scaling_hook_failed"))["error"]
    assert error == "it ended with code 3: quota exceeded"


async def test_a_command_that_does_not_end_is_killed_with_what_it_started(tmp_path: Path) -> None:
    told = commands("sh", "-c", "sleep 600 & sleep 600", timeout_s=0.2)
    async with running(told) as logs:
        told.changed(verdict(), "l4", 1, 3)
        assert "did not end" in (await until(logs, "scaling_hook_failed"))["error"]


async def test_a_command_that_is_not_there_is_logged() -> None:
    told = commands("/no/such/command")
    async with running(told) as logs:
        told.changed(verdict(), "l4", 1, 3)
        assert "cannot be started" in (await until(logs, "scaling_hook_failed"))["error"]
