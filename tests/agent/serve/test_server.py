"""A request's way through a model's processes, and what becomes of it when one of them misbehaves."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from agent.engines.torch.errors import ComputationFailed, OutOfMemory
from agent.serve.batching import BatchQueue
from agent.serve.call import ModelCall
from agent.serve.errors import ComputationTooLong, NotReady
from agent.serve.messages import ProgressReport
from shared.process.request_errors import QueueFull, RequestError
from tests.agent.serve.played_models import PICTURE
from tests.agent.serve.running import RunningModel, running


async def each(model: RunningModel, *items: Any) -> list[Any]:
    """The answers to requests that come at once; of those that fail, the errors."""
    return await asyncio.gather(*(model.ask(item) for item in items), return_exceptions=True)


def kinds(answers: list[Any]) -> list[Any]:
    return [type(answer) if isinstance(answer, Exception) else answer for answer in answers]


async def test_requests_are_computed_in_batches(tmp_path: Path) -> None:
    async with running("Echo", tmp_path) as model:
        assert await each(model, *range(40)) == list(range(40))
        assert model.server.items == 40
        assert model.server.batches <= 20
        assert model.server.state().status == "READY"
        assert (model.server.running, model.server.waiting) == (0, 0)
        assert model.server.slots == 16


async def test_a_batch_waits_for_items_that_are_being_decoded_and_for_nothing_else(tmp_path: Path) -> None:
    async with running("Echo", tmp_path) as model:
        assert await model.ask(0) == 0
        queue = model.server.queue = BatchQueue(3600.0)
        for _ in range(200):
            queue.observe(0.001)
        with model.server.item_to_come():
            answer = asyncio.create_task(model.ask(1))
            await model.until(lambda: len(queue) == 1)
            due_s = queue.due_at(8, more_come=True)
            assert due_s is not None
            assert due_s > asyncio.get_running_loop().time() + 3000.0
        assert await answer == 1


async def test_large_bodies_and_items_pass_through_shared_memory(tmp_path: Path) -> None:
    async with running("Echo", tmp_path) as model:
        large = ["x" * 3_000_000]
        assert await each(model, large, 1, large) == [large, 1, large]


async def only_one_fails(model: RunningModel, mood: str, error: type[RequestError]) -> Exception:
    """The error of a request that misbehaves, among others that come at once and have their answers."""
    first, second, third, fourth = await each(model, "a", "b", mood, "c")
    assert [first, second, fourth] == ["a", "b", "c"], mood
    assert isinstance(third, error), mood
    assert await model.ask("d") == "d"
    return third


async def test_only_the_request_that_misbehaves_fails(tmp_path: Path) -> None:
    async with running("Moody", tmp_path) as model:
        for mood, error in (
            ("refused in decode", RequestError),
            ("raise in decode", ComputationFailed),
            ("raise in predict", ComputationFailed),
            ("raise in encode", ComputationFailed),
            ("unwritable", ComputationFailed),
            ("too few", ComputationFailed),
            ("too many", ComputationFailed),
            ("nothing", ComputationFailed),
        ):
            await only_one_fails(model, mood, error)
        refused = await only_one_fails(model, "refused in predict", RequestError)
        assert isinstance(refused, RequestError)
        assert (refused.status, refused.code, refused.message) == (400, "odd", "This is refused by predict.")
        assert model.server.devices[0].restarted == 0


@pytest.mark.parametrize(
    ("mood", "error"),
    [
        ("memory", OutOfMemory),
        ("crash", ComputationFailed),
        ("exit", ComputationFailed),
        ("hang", ComputationTooLong),
        ("crash in decode", ComputationFailed),
        ("hang in decode", ComputationTooLong),
    ],
)
async def test_only_the_request_that_costs_memory_or_a_process_fails(
    mood: str, error: type[RequestError], tmp_path: Path
) -> None:
    async with running("Moody", tmp_path) as model:
        await only_one_fails(model, mood, error)


async def test_an_error_says_what_went_wrong_and_nothing_of_what_was_raised(tmp_path: Path) -> None:
    async with running("Moody", tmp_path) as model:
        said = [str(error) for error in await each(model, "raise in predict")]
        assert said == ["Predict raised RuntimeError; the engine's log says why."]
        said = [str(error) for error in await each(model, "too few")]
        assert said == ["Predict returned 0 outputs for a batch of 1; the engine's log says why."]
        said = [str(error) for error in await each(model, "crash")]
        assert "SIGSEGV" in said[0]
        said = [str(error) for error in await each(model, "hang")]
        assert said == ["Predict did not return within 1 s. Its process was started again."]


async def test_when_memory_runs_out_batches_are_halved_and_stay_so(tmp_path: Path) -> None:
    async with running("Narrow", tmp_path) as model:
        answers = await each(model, *range(8))
        assert [answer["item"] for answer in answers] == list(range(8))
        assert max(answer["batch"] for answer in answers) <= 2
        device, limit = model.server.devices[0], model.server.devices[0].limit
        failed = model.server.out_of_memory
        assert limit <= 2
        assert failed >= 1
        assert model.server.slots == 2 * limit
        os.kill(device_pid(model), signal.SIGKILL)
        await model.until(lambda: device.restarted == 1 and device.idle)
        assert device.limit == limit
        assert max(answer["batch"] for answer in await each(model, *range(8))) <= 2
        assert model.server.out_of_memory == failed


def device_pid(model: RunningModel) -> int:
    child: Any = model.server.devices[0]._child
    return int(child.pid)


async def test_a_full_queue_is_an_error_of_its_own(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    async with running("Gated", scratch) as model:
        places = model.server.admission.places
        assert places == 4
        waiting = [asyncio.ensure_future(model.ask(str(gate))) for _ in range(places)]
        await model.until(lambda: model.server.admission.taken == places)
        with pytest.raises(QueueFull) as refused:
            await model.ask(str(gate))
        assert refused.value.status == 429
        assert refused.value.retry_after_s is not None
        gate.touch()
        assert set(await asyncio.gather(*waiting)) <= {1, 2}


async def test_the_state_is_told_while_the_model_computes(tmp_path: Path) -> None:
    gate, scratch = tmp_path / "gate", tmp_path / "scratch"
    scratch.mkdir()
    async with running("Gated", scratch) as model:
        answer = asyncio.ensure_future(model.ask(str(gate)))
        await model.until(lambda: model.server.state().status == "BUSY")
        assert model.server.running == 1
        gate.touch()
        await answer
        await model.until(lambda: model.server.state().status == "READY")


async def test_what_is_cancelled_leaves_the_queue_at_once(tmp_path: Path) -> None:
    gate, scratch = tmp_path / "gate", tmp_path / "scratch"
    scratch.mkdir()
    async with running("Lengths", scratch) as model:
        begun = asyncio.ensure_future(model.ask({"gate": str(gate), "length": 1}))
        await model.until(lambda: model.server.running == 1)
        queued = asyncio.ensure_future(model.ask({"gate": str(gate), "length": 2}))
        await model.until(lambda: len(model.server.queue) == 1)
        queued.cancel()
        await asyncio.gather(queued, return_exceptions=True)
        assert len(model.server.queue) == 0
        assert model.server.admission.taken == 1
        gate.touch()
        assert await begun == [1]


async def test_what_is_decoded_just_as_its_client_goes_leaves_nothing(tmp_path: Path) -> None:
    async with running("Echo", tmp_path) as model:
        codecs = model.server.codecs
        assert codecs is not None
        take = codecs._take

        def take_and_go(*said: Any) -> None:
            take(*said)
            asking.cancel()

        codecs._take = take_and_go  # type: ignore[assignment]
        asking = asyncio.create_task(model.ask(["x" * 3_000_000]))
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert os.listdir(tmp_path) == []


async def test_items_of_like_length_are_computed_together(tmp_path: Path) -> None:
    gate, scratch = tmp_path / "gate", tmp_path / "scratch"
    scratch.mkdir()
    async with running("Lengths", scratch) as model:
        first = asyncio.ensure_future(model.ask({"gate": str(gate), "length": 0}))
        await model.until(lambda: model.server.running == 1)
        ahead = [asyncio.ensure_future(model.ask({"gate": str(gate), "length": 5})) for _ in range(4)]
        await model.until(lambda: model.server.running == 5)  # the device now has what it takes
        lengths = [10, 900, 11, 901, 12, 902, 13, 903]
        answers = []
        for place, length in enumerate(lengths):
            item = {"gate": str(gate), "length": length}
            answers.append(asyncio.ensure_future(model.ask(item)))
            await model.until(lambda place=place: len(model.server.queue) == place + 1)
        gate.touch()
        together = [sorted(await answer) for answer in answers]
        assert together == [[10, 11, 12, 13], [900, 901, 902, 903]] * 4
        await asyncio.gather(first, *ahead)


async def test_a_stream_is_passed_on_as_it_is_computed_and_ends_when_its_client_goes(tmp_path: Path) -> None:
    async with running("Counter", tmp_path) as model:
        async with model.call(-1) as (answer, call):
            assert answer.streamed
            assert answer.body == b"data: 1\n\n"
            assert [await call.next_piece() for _ in range(3)] == [
                b"data: 2\n\n",
                b"data: 3\n\n",
                b"data: 4\n\n",
            ]
        await model.until(lambda: model.server.devices[0].idle)
        async with model.call(2) as (answer, call):
            assert answer.body == b"data: 1\n\n"
            assert [await call.next_piece(), await call.next_piece()] == [b"data: 2\n\n", None]


async def test_who_reads_a_stream_too_slowly_is_cut_off_and_the_device_is_free(tmp_path: Path) -> None:
    async with running("Counter", tmp_path) as model, model.call(-1) as (_, call):
        await model.until(lambda: model.server.devices[0].idle)
        with pytest.raises(ComputationFailed, match="too slowly"):
            await _rest(call)


async def _rest(call: ModelCall) -> None:
    while await call.next_piece() is not None:
        pass


async def test_a_batch_after_one_that_took_too_long_is_computed_by_the_next_process(tmp_path: Path) -> None:
    """The first one was whole just when its process was ended for it."""
    scratch, gates = tmp_path / "scratch", [tmp_path / "1", tmp_path / "2"]
    scratch.mkdir()
    async with running("GatedEach", scratch) as model:
        server: Any = model.server
        device = server.devices[0]
        child = device._child
        take, done, kill = server.on_outputs, server.on_batch_done, child.kill

        def late(*said: Any) -> None:
            if device._child is child:
                child.kill = lambda why: None
                device._out_of_time()
            take(*said)

        def ended(*said: Any) -> None:
            if device._child is child:
                kill("late")
                gates[1].touch()
            done(*said)

        server.on_outputs, server.on_batch_done = late, ended
        answers = [asyncio.ensure_future(model.ask(str(gate))) for gate in gates]
        await model.until(lambda: server.running == 2)
        gates[0].touch()
        assert await asyncio.gather(*answers) == [1, 1]
        assert device.restarted == 1


async def test_a_lost_process_is_started_again_and_what_waited_is_computed(tmp_path: Path) -> None:
    async with running("Echo", tmp_path) as model:
        os.kill(device_pid(model), signal.SIGKILL)
        assert await model.ask(["after"]) == ["after"]
        assert model.server.devices[0].restarted == 1


async def test_a_model_that_never_comes_back_is_given_up_and_nothing_waits_for_it(tmp_path: Path) -> None:
    async with running("Moody", tmp_path) as model:
        answers = await asyncio.gather(*(model.ask("crash") for _ in range(5)), return_exceptions=True)
        assert set(kinds(answers)) <= {ComputationFailed, NotReady}
        end = await model.server.ended
        assert "SIGSEGV" in end.reason
        assert model.server.state().status == "FAILED"
        with pytest.raises(NotReady):
            model.server.check_ready()
        assert len(model.server.queue) == 0


async def test_every_device_has_a_process_of_its_own(tmp_path: Path) -> None:
    async with running("Echo", tmp_path, devices=("cpu", "other")) as model:
        await model.until(lambda: all(device.idle for device in model.server.devices))
        assert model.server.slots == 32
        os.kill(device_pid(model), signal.SIGSTOP)  # one hangs, and the other one serves
        try:
            first = asyncio.ensure_future(model.ask(1))
            await model.until(lambda: model.server.running == 1)
            assert await model.ask(2) == 2
            await model.until(lambda: model.server.state().status == "READY")  # once its batch is over
        finally:
            os.kill(device_pid(model), signal.SIGCONT)
        assert await first == 1


async def test_what_a_model_says_of_its_progress_is_told_by_the_requests_tag(tmp_path: Path) -> None:
    async with running("Working", tmp_path) as model:
        said: list[tuple[str, ProgressReport]] = []
        model.server.on_progress_report = lambda tag, report: said.append((tag, report))
        assert await model.ask(["x"]) == ["x"]
        assert [(tag, report.fraction, report.words, report.preview) for tag, report in said] == [
            ("tag", 0.5, "half of it", PICTURE),
            ("tag", 1.0, "all of it", None),
        ]


async def test_a_response_may_have_a_status_and_headers_of_its_own(tmp_path: Path) -> None:
    async with running("Moody", tmp_path) as model:
        answer = await model.begin("status")
        assert (answer.status, answer.body) == (201, b'{"said":"created"}')
        assert dict(answer.headers) == {"x-said": "yes", "content-type": "application/json"}
