"""Paths of TensorFlow Serving and TorchServe are read in one way only, and made anew for the engine."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.serving_paths import (
    ServingPath,
    read_predictions_path,
    read_served_path,
    with_served_model,
)

NAMES = st.text(min_size=1).filter(lambda name: not {"", ".", ".."} & set(name.split("/")))


@pytest.mark.parametrize(
    ("raw", "model", "rest"),
    [
        ("/v1/models/half:predict", b"half", ":predict"),
        ("/v1/models/half%3Apredict", b"half", ":predict"),
        ("/v1/models/half/versions/12:classify", b"half", "/versions/12:classify"),
        ("/v1/models/half/labels/stable:regress", b"half", "/labels/stable:regress"),
        ("/v1/models/half/versions/12", b"half", "/versions/12"),
        ("/v1/models/half/metadata", b"half", "/metadata"),
        ("/v1/models/half/versions/1/metadata", b"half", "/versions/1/metadata"),
        ("/v1/models/org/half:explain", b"org/half", ":explain"),
        ("/v1/models/org%2Fllama3:8b:predict", b"org/llama3:8b", ":predict"),
    ],
)
def test_tensorflows_paths_are_read_as_model_and_rest(raw: str, model: bytes, rest: str) -> None:
    found = read_served_path(raw)
    assert found is not None
    assert (found.base, found.model, found.rest) == ("/v1/models/", model, rest)
    assert found.methods == (("POST",) if ":" in rest else ("GET",))


@pytest.mark.parametrize(
    "raw",
    [
        "/v1/models/half",
        "/v1/models/",
        "/v1/models/:predict",
        "/v1/models//half:predict",
        "/v1/models/../x:predict",
        "/v1/models/%2e%2e:predict",
        "/v1/models/a%2F..%2Fb:predict",
        "/v1/models/half:load",
        "/v1/models/half%:predict",
        "/v1/models/half/versions/x:predict/..",
        "/v1/%6dodels/half:predict",
    ],
)
def test_what_is_none_of_them_is_not_read(raw: str) -> None:
    found = read_served_path(raw)
    assert found is None


@pytest.mark.parametrize(
    ("raw", "found"),
    [
        ("/predictions/cat", ServingPath("/predictions/", b"cat", "", ("GET", "POST", "PUT"))),
        ("/explanations/cat/1.0", ServingPath("/explanations/", b"cat", "/1.0", ("GET", "POST", "PUT"))),
        ("/predictions/a%2Fb/2", ServingPath("/predictions/", b"a/b", "/2", ("GET", "POST", "PUT"))),
        ("/predictions/", None),
        ("/predictions/a/b/c", None),
        ("/predictions/..", None),
        ("/predictions/a/..", None),
        ("/predictions/%2e%2e%2fx", None),
    ],
)
def test_torchserves_paths_are_read_as_model_and_version(raw: str, found: ServingPath | None) -> None:
    assert read_predictions_path(raw) == found


@given(NAMES, st.sampled_from([":predict", "/versions/3:predict", "/metadata", "/labels/a.b:classify"]))
def test_what_is_made_for_a_tensorflow_server_is_read_as_the_same(model: str, rest: str) -> None:
    path = ServingPath("/v1/models/", model.encode(), rest, ()).of(model)
    found = read_served_path(path)
    assert found is not None
    assert (found.model, found.rest) == (model.encode(), rest)


@given(NAMES, st.sampled_from(["", "/1.0"]))
def test_what_is_made_for_torchserve_is_read_as_the_same(model: str, rest: str) -> None:
    path = ServingPath("/predictions/", model.encode(), rest, ()).of(model)
    found = read_predictions_path(path)
    assert found is not None
    assert (found.model, found.rest) == (model.encode(), rest)


def test_a_model_takes_anothers_place() -> None:
    assert with_served_model("/v1/models/p:predict?a=b", "x/y") == "/v1/models/x%2Fy:predict?a=b"
    assert with_served_model("/explanations/p/2", "m") == "/explanations/m/2"
    assert with_served_model("/v1/other", "m") == "/v1/other"
