"""Which names of models are offered, and ids made of them."""

from agent.engines.model_names import deployment_id, is_nameable
from gateway.domain.surface import is_model_name
from shared.protocol.limits import MODEL_NAME_CHARS


def test_agents_offer_what_clients_can_ask_for() -> None:
    names = [
        "m",
        "m" * 200,
        "m" * MODEL_NAME_CHARS,
        "m" * (MODEL_NAME_CHARS + 1),
        "",
        "a b",
        "a\tb",
        "llama[1]",
    ]
    names += ["a*b", "ä/ö:latest", "a\u00a0b", "a\u200bb", "日本語"]
    for name in names:
        assert is_nameable(name) == is_model_name(name), name
    assert is_nameable("m" * 200)


def test_ids_of_long_names_fit_and_differ() -> None:
    names = ["m" * MODEL_NAME_CHARS, "m" * (MODEL_NAME_CHARS - 1) + "n", "m" * 200]
    ids = {deployment_id("e" * 63, name) for name in names}
    assert len(ids) == 3
    assert max(map(len, ids)) <= MODEL_NAME_CHARS
    assert deployment_id("e", "m") == "e/m"
