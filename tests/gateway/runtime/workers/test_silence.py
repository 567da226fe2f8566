"""Which workers have been silent for too long, as far as time counts."""

from gateway.runtime.workers.silence import STEP_S, SilenceWatch

LIMIT_S = 15.0


def watch_of(*workers: str, limit_s: float = LIMIT_S) -> SilenceWatch[str]:
    watch = SilenceWatch[str](limit_s, 100.0)
    for each in workers:
        watch.heard(each)
    return watch


def test_one_that_says_nothing_for_the_limit_has_hung() -> None:
    watch, now = watch_of("quiet", "well"), 100.0
    found = []
    while not watch.hung():
        now += 1.0
        watch.look(now)
        watch.heard("well")
        found.append((now - 100.0, watch.is_late("quiet"), watch.is_late("well")))
    assert watch.hung() == ["quiet"]
    assert found[-1] == (LIMIT_S + 1.0, True, False)
    assert [late for _, late, _ in found] == [False] * 3 + [True] * 13, "others accept its connections first"
    watch.heard("quiet")
    assert (watch.hung(), watch.is_late("quiet"), watch.silent_s("quiet")) == ([], False, 0.0)


def test_time_in_which_nobody_looked_does_not_count() -> None:
    watch = watch_of("a", "b")
    watch.look(101.0)
    watch.look(101.0 + 86_400.0)
    assert watch.hung() == []
    assert watch.silent_s("a") == watch.silent_s("b") == 1.0 + STEP_S
    watch.look(50.0)
    assert watch.silent_s("a") == 1.0 + STEP_S, "a clock that goes back is no silence"


def test_one_that_never_spoke_or_has_left_is_not_watched() -> None:
    watch, now = watch_of("leaving"), 100.0
    assert watch.watches
    watch.forget("leaving")
    watch.forget("never")
    assert not watch.watches
    for _ in range(40):
        now += 1.0
        watch.look(now)
    assert (watch.hung(), watch.silent_s("never"), watch.is_late("never")) == ([], 0.0, False)


def test_without_a_limit_nobody_is_watched() -> None:
    watch = watch_of("quiet", limit_s=0.0)
    watch.look(101.0)
    assert (watch.watches, watch.hung(), watch.is_late("quiet")) == (False, [], False)


def test_with_a_short_limit_nobody_is_late_because_of_one_look() -> None:
    watch = watch_of("quiet", limit_s=5.0)
    watch.look(100.0 + STEP_S)
    assert not watch.is_late("quiet")
    watch.look(100.0 + STEP_S + 0.1)
    assert watch.is_late("quiet")
