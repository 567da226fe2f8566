"""What a model of your own is written with."""

import pytest

from agent.serve import BadRequest, Batch, Model, ModelRequest
from agent.serve.model import name_of_class


@pytest.mark.parametrize(
    ("name", "called"),
    [("Classifier", "classifier"), ("ImageClassifier", "image-classifier"), ("MyLLMModel2", "my-llm-model2")],
)
def test_a_model_is_called_after_its_class(name: str, called: str) -> None:
    assert name_of_class(name) == called


def test_a_body_is_read_as_json() -> None:
    assert ModelRequest(path="/predict", body=b'{"a":1}').json() == {"a": 1}
    with pytest.raises(BadRequest, match="not JSON"):
        ModelRequest(path="/predict", body=b"{").json()


def test_by_default_json_goes_in_and_the_output_comes_out() -> None:
    model = Model()
    assert model.decode(ModelRequest(path="/predict", body=b"[1]")) == [1]
    assert model.encode({"a": 1}) == {"a": 1}
    assert model.length("x") is None
    with pytest.raises(NotImplementedError):
        model.predict(Batch([1]))


def test_a_batch_is_a_list_that_knows_who_has_gone() -> None:
    batch = Batch(["a", "b"], lambda index: index == 1)
    assert list(batch) == ["a", "b"]
    assert [batch.is_cancelled(0), batch.is_cancelled(1)] == [False, True]


def test_progress_outside_of_a_process_goes_nowhere() -> None:
    Model().report_progress(0.5, "half")
