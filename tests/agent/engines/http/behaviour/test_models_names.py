"""Which names of models are offered, and what is said of the others."""

from agent.engines.http.models import LOGGED, MODELS, deployment_id, is_nameable, left_out, read_models
from gateway.domain.surface import is_model_name
from shared.protocol.limits import MODEL_NAME_CHARS


def listed(*names: object) -> dict[str, object]:
    return {"data": [{"id": name} for name in names]}


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


def test_names_that_cannot_be_offered_are_told_with_the_reason() -> None:
    document = listed("good", "a b", "x" * 300, None, "\u202eevil")
    assert [model.id for model in read_models(document) or ()] == ["good"]
    told = dict(left_out(document))
    assert "blanks" in told["'a b'"]
    assert "300 characters" in told[f"'{'x' * 79}… (300 characters)"]
    assert "no name" in told["(no name)"]
    assert "printed" in told["'\\u202eevil'"]
    assert left_out(listed("good")) == ()


def test_models_beyond_the_most_are_told_as_far_as_a_log_goes() -> None:
    document = listed(*(f"m{n}" for n in range(MODELS + 5)))
    assert [name for name, _ in left_out(document)] == [f"'m{n}'" for n in range(MODELS, MODELS + 5)]
    assert len(left_out(listed(*(" " * n for n in range(100))))) == LOGGED


def test_ids_of_long_names_fit_and_differ() -> None:
    names = ["m" * MODEL_NAME_CHARS, "m" * (MODEL_NAME_CHARS - 1) + "n", "m" * 200]
    ids = {deployment_id("e" * 63, name) for name in names}
    assert len(ids) == 3
    assert max(map(len, ids)) <= MODEL_NAME_CHARS
    assert deployment_id("e", "m") == "e/m"
