import pytest

from gateway.scaling.class_facts import SLOTS_GUESS, classes_of
from gateway.scaling.observation import SeenModel, SeenReplica
from gateway.scaling.settings import ClassSettings, ScalingSettings
from gateway.scheduling.learning.performance import Performance
from gateway.scheduling.scaling.data import ClassFacts

LENGTHS = {"input_tokens": 1000.0, "output_tokens": 100.0, "high_input_tokens": 8000.0, "known": 50} | {
    "high_output_tokens": 400.0
}


def facts(
    seen: SeenModel,
    performance: Performance,
    *allowed: str,
    lead: float | None = None,
    **classes: ClassSettings,
) -> dict[str, ClassFacts]:
    settings = ScalingSettings(classes=classes)
    found = classes_of("m", seen, allowed, settings, performance, lambda model, device: lead)
    return {each.device: each for each in found}


def learnt(times: float = 1.0) -> Performance:
    """Prompts were measured on an L4, and took so many times what public figures say."""
    performance = Performance()
    speeds = performance.speeds("m", "l4")
    for _ in range(40):
        speeds.reading.observe([0.02, 0.5, 0.01, 0.0], 0.53 * times)
        speeds.writing.observe([1.0, 0.2, 0.1, 0.0], 1.3 * times)
    speeds.hear(None, None)
    return performance


def test_a_class_that_is_there_and_one_that_may_be_are_told_apart() -> None:
    seen = SeenModel(replicas={"a": SeenReplica("a", "l4", 8, True), "b": SeenReplica("b", "l4", 0, False)})
    found = facts(seen, Performance(), "h100", h100=ClassSettings(price_hour=4.0, slots=64, max_replicas=3))
    assert (found["l4"].ready, found["l4"].starting, found["l4"].slots) == (1, 1, 8)
    assert (found["h100"].ready, found["h100"].slots, found["h100"].price_hour) == (0, 64, 4.0)
    assert found["h100"].max_replicas == 3


def test_without_measured_speeds_the_time_that_slots_are_kept_counts() -> None:
    seen = SeenModel(hold_s=4.0, replicas={"a": SeenReplica("a", "l4", 8, True)})
    found = facts(seen, Performance(), "h100")
    assert found["l4"].request_s == pytest.approx(0.5)
    assert (found["l4"].measured, found["h100"].measured) == (True, False)
    assert facts(SeenModel(), Performance(), "l4")["l4"].slots == SLOTS_GUESS


def test_measured_speeds_count_by_the_lengths_of_what_is_asked() -> None:
    seen = SeenModel(hold_s=4.0, replicas={"a": SeenReplica("a", "l4", 8, True)}, **LENGTHS)  # type: ignore[arg-type]
    usual, slow = facts(seen, learnt(), "h100"), facts(seen, learnt(2.0), "h100")
    assert usual["l4"].measured
    assert not usual["h100"].measured, "scaled from what the other class was measured to do"
    assert usual["h100"].request_s < usual["l4"].request_s
    assert slow["l4"].request_s > 1.5 * usual["l4"].request_s
    assert slow["h100"].request_s > 1.5 * usual["h100"].request_s
    assert usual["l4"].first_s > 8 * 1000 * 16e9 / (121e12 * 0.5) / 2
    assert usual["l4"].total_s > usual["l4"].first_s
    of_mean = usual["l4"].usual_first_s
    assert of_mean is not None
    assert 0 < of_mean < usual["l4"].first_s, "a mean prompt is shorter than a long one"


def test_devices_that_are_slower_than_their_class_do_less() -> None:
    seen = SeenModel(replicas={"a": SeenReplica("a", "l4", 8, True, pace=2.0)}, **LENGTHS)  # type: ignore[arg-type]
    even = SeenModel(replicas={"a": SeenReplica("a", "l4", 8, True)}, **LENGTHS)  # type: ignore[arg-type]
    assert facts(seen, learnt())["l4"].request_s == pytest.approx(2 * facts(even, learnt())["l4"].request_s)


def test_the_lead_time_is_as_measured_or_as_set_or_the_time_of_loads() -> None:
    assert facts(SeenModel(), Performance(), "l4", lead=42.0)["l4"].lead_s == 42.0
    assert facts(SeenModel(), Performance(), "l4")["l4"].lead_s == 180.0
    given = ClassSettings(ready_s=60.0)
    assert facts(SeenModel(), Performance(), "l4", l4=given)["l4"].lead_s == 60.0
    performance = Performance()
    performance.speeds("m", "l4").loaded(400.0)
    assert facts(SeenModel(), performance, "l4", l4=given)["l4"].lead_s == 400.0
