"""Paths of KServe's protocol are read in one way only, and made anew for the engine."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.inference_paths import InferencePath, inference_path, read_inference_path, with_model


@pytest.mark.parametrize(
    ("raw", "found"),
    [
        ("/v2/models/m", InferencePath(b"m")),
        ("/v2/models/m/infer", InferencePath(b"m", action="infer")),
        ("/v2/models/m/versions/3/infer", InferencePath(b"m", "3", "infer")),
        ("/v2/models/m/versions/3", InferencePath(b"m", "3")),
        ("/v2/models/org/m/infer", InferencePath(b"org/m", action="infer")),
        ("/v2/models/org%2Fm/infer", InferencePath(b"org/m", action="infer")),
        ("/v2/models/infer", InferencePath(b"infer")),
        ("/v2/models/infer/infer", InferencePath(b"infer", action="infer")),
        ("/v2/models/", None),
        ("/v2/models//infer", None),
        ("/v2/models/../repository/index", None),
        ("/v2/models/%2e%2e/infer", None),
        ("/v2/models/a%2F..%2Fb/infer", None),
        ("/v2/models/m/versions/../infer", None),
        ("/v2/models/m/versions/%31/infer", None),
        ("/v2/models/m%/infer", None),
        ("/v2/%6dodels/m/infer", None),
    ],
)
def test_a_path_is_read_as_model_version_and_action(raw: str, found: InferencePath | None) -> None:
    assert read_inference_path(raw) == found


def test_inference_is_posted_and_metadata_are_got() -> None:
    assert InferencePath(b"m", action="infer").methods == ("POST",)
    assert InferencePath(b"m").methods == InferencePath(b"m", action="config").methods == ("GET",)


@given(
    st.text(min_size=1).filter(lambda name: not {"", ".", ".."} & set(name.split("/"))),
    st.sampled_from(["", "1", "2024-05.b"]),
    st.sampled_from(["", "infer", "generate_stream"]),
)
def test_what_is_made_for_an_engine_is_read_as_the_same(model: str, version: str, action: str) -> None:
    found = read_inference_path(inference_path(model, version, action))
    assert found == InferencePath(model.encode(), version, action)


def test_a_model_takes_anothers_place() -> None:
    assert with_model("/v2/models/p/versions/1/infer?a=b", "x/y") == "/v2/models/x%2Fy/versions/1/infer?a=b"
    assert with_model("/v2/models/prod", "m") == "/v2/models/m"
    assert with_model("/v1/other", "m") == "/v1/other"
