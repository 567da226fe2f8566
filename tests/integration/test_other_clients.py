"""SDKs and frameworks of others at both kinds of engine: ``python -m tests.clients`` as tests."""

import os
from collections.abc import Iterator, Sequence

import pytest

from tests.clients.__main__ import BUILT_IN, CHAT_ONLY, engines
from tests.clients.install import CLIENTS, Client
from tests.clients.running import Served, run_client

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(
        os.environ.get("TRUNKLINE_TEST_ENGINES") != "full", reason="installs ten clients: tests/run engines"
    ),
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[Served]]:
    with engines(tmp_path_factory.mktemp("clients"), (CHAT_ONLY, BUILT_IN)) as there:
        yield there


@pytest.mark.parametrize("place", [0, 1], ids=[CHAT_ONLY, BUILT_IN])
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.title)
async def test_a_client_can_do_all_that_it_does(client: Client, place: int, served: Sequence[Served]) -> None:
    result = await run_client(client, served[place])
    assert not result.failures, "\n".join(result.failures)
    assert result.checks
