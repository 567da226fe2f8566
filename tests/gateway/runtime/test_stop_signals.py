"""The first signal asks to finish, the second one to end."""

from gateway.runtime.stop_signals import StopSignals


async def test_a_second_signal_ends_at_once_but_not_a_worker_which_its_supervisor_tells() -> None:
    alone, worker = StopSignals(), StopSignals(escalate=False)
    for stop in (alone, worker):
        stop.receive()
        assert (stop.requested.is_set(), stop.forced.is_set()) == (True, False)
        stop.receive()
    assert (alone.forced.is_set(), worker.forced.is_set()) == (True, False)
    worker.end_at_once()
    assert worker.forced.is_set()


async def test_a_process_whose_place_is_taken_stops_without_haste() -> None:
    stop = StopSignals()
    stop.leave()
    assert (stop.requested.is_set(), stop.leaving, stop.forced.is_set()) == (True, True, False)
