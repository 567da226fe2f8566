"""What is said of models whose names cannot be offered."""

from agent.engines.http.models import LOGGED, MODELS, left_out, read_models


def listed(*names: object) -> dict[str, object]:
    return {"data": [{"id": name} for name in names]}


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
