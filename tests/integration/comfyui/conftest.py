"""A site with one ComfyUI server for the tests of each file."""

from collections.abc import Iterator

import pytest

from tests.integration.comfyui.site import REAL, ComfyUISite, start
from tests.support.processes import House


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComfyUISite]:
    directory = tmp_path_factory.mktemp("comfyui")
    with House(directory) as house:
        arguments = ("tests.support.comfyui_server", "--step-s", "0.01")
        url = REAL or house.listening(house.children.start("comfyui", *arguments))
        gateway, key = start(house, directory, [url], output="1 MiB", name="studio")
        yield ComfyUISite(house, gateway, key, url)
