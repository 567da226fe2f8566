from gateway.scaling.settings import ClassSettings, ModelSettings, ScalingSettings
from gateway.scheduling.scaling.data import ScalingRule


def test_the_first_pattern_that_fits_has_the_rule_of_a_model() -> None:
    first, second = ScalingRule(min_replicas=0), ScalingRule(max_replicas=2)
    settings = ScalingSettings(
        classes={"l4": ClassSettings(), "h100": ClassSettings()},
        models=[ModelSettings("llama-*", first, ["h100"]), ModelSettings("*-8b", second)],
    )
    assert settings.of("llama-8b") == (first, ["h100"])
    assert settings.of("qwen-8b") == (second, ["l4", "h100"])
    assert settings.of("phi") == (ScalingRule(), ["l4", "h100"])


def test_requests_are_held_only_for_models_of_which_none_may_be_kept() -> None:
    settings = ScalingSettings(models=[ModelSettings("small", ScalingRule(min_replicas=0))], hold_s=90.0)
    assert settings.held_s("small") == 90.0
    assert settings.held_s("large") == 0.0
