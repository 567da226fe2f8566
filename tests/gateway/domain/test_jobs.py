"""Which states of a job follow which."""

from gateway.domain.jobs import FINAL, TRANSITIONS, JobState


def test_every_state_has_its_transitions_and_only_a_failed_job_comes_back() -> None:
    assert set(TRANSITIONS) == set(JobState)
    assert {state for state in FINAL if TRANSITIONS[state]} == {JobState.FAILED}
    assert {state for state in JobState if state.is_final} == FINAL


def test_every_state_can_be_reached_and_every_job_can_end() -> None:
    reached, edge = {JobState.QUEUED}, {JobState.QUEUED}
    while edge:
        edge = {after for state in edge for after in TRANSITIONS[state]} - reached
        reached |= edge
    assert reached == set(JobState)
    assert all(TRANSITIONS[state] & FINAL for state in (JobState.QUEUED, JobState.RUNNING))
