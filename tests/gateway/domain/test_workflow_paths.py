"""A workflow's name is read from its path, and its engine gets a path made anew."""

import pytest

from gateway.domain.workflow_paths import read_workflow_path, workflow_path


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/workflows/painting", b"painting"),
        ("/v1/workflows/sd%2Fxl.safetensors", b"sd/xl.safetensors"),
        ("/v1/workflows/a%20b", b"a b"),
        ("/v1/workflows/", None),
        ("/v1/workflows/a/b", None),
        ("/v1/workflows/..", None),
        ("/v1/workflows/a%2F..%2Fb", None),
        ("/v1/workflows/a%2", None),
        ("/v1/workflows/a?b", None),
        ("/v1/other/a", None),
    ],
)
def test_one_segment_is_a_name(path: str, name: bytes | None) -> None:
    assert read_workflow_path(path) == name


def test_a_slash_in_a_name_is_escaped() -> None:
    assert workflow_path("sd/xl") == "/v1/workflows/sd%2Fxl"
    assert read_workflow_path(workflow_path("sd/xl")) == b"sd/xl"
