"""Batches go through OpenAI's states, and their lines have ids of their own."""

from gateway.domain.batches import (
    CANCELLABLE,
    ENDED_BATCHES,
    TRANSITIONS,
    BatchRecord,
    BatchState,
    BatchUsage,
    NewBatch,
)

NEW = NewBatch("batch_1f", "t", "k", {}, "/v1/embeddings", "file-1", "24h", 0.0, 86_400.0)


def test_every_state_can_end_and_what_has_ended_stays() -> None:
    assert set(TRANSITIONS) == set(BatchState)
    for state in BatchState:
        reached, todo = set[BatchState](), [state]
        while todo:
            for after in TRANSITIONS[todo.pop()] - reached:
                reached.add(after)
                todo.append(after)
        assert not reached if state in ENDED_BATCHES else reached & ENDED_BATCHES
    assert not CANCELLABLE & ENDED_BATCHES


def test_lines_of_all_batches_have_different_ids() -> None:
    assert NEW.line_id(1) == "batch_req_1f_1"
    assert NEW.line_id(11) != NEW.line_id(1)


def test_all_lines_are_jobs_once_as_many_are_submitted_as_were_read() -> None:
    assert not BatchRecord(1, NEW, BatchState.VALIDATING).is_submitted
    assert not BatchRecord(1, NEW, BatchState.IN_PROGRESS, total=2, submitted=1).is_submitted
    assert BatchRecord(1, NEW, BatchState.CANCELLING, total=2, submitted=2).is_submitted


def test_usage_is_as_openai_says_it() -> None:
    assert BatchUsage(10, 5, 3, 2).to_dict() == {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 3},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 15,
    }
