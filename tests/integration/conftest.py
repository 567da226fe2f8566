"""One house for the whole session (gateway, engine, agent), and houses for tests that break things."""

import asyncio
import fcntl
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from tests.support.browser import Browser, chromium
from tests.support.forks import use_forks
from tests.support.leaks import descriptor_count
from tests.support.processes import Engine, Gateway, House, until

MODEL = "scripted"
DEMO = "trunkline-demo"
TINY = "tests/tiny"
_HOUSES: list[House] = []
_KEPT = 2
"""An agent keeps a connection to its engine open for the next request, and may poll on another."""


@dataclass(frozen=True, slots=True)
class Site:
    """A gateway with one agent and its scripted engine, and a key for clients."""

    house: House
    gateway: Gateway
    engine: Engine
    key: str

    @property
    def base_url(self) -> str:
        return self.gateway.base_url


def build_site(
    directory: Path, *agent_arguments: str, gateway_environment: Mapping[str, str] | None = None
) -> Site:
    """Start all three and wait until the model is on offer."""
    house = House(directory)
    _HOUSES.append(house)
    gateway = house.gateway(environment=gateway_environment)
    engine = house.engine("--model", MODEL)
    key, token = gateway.key_and_token("tests")
    house.agent(gateway, engine.url, *agent_arguments, token=token)
    house.wait_for_model(gateway, key, MODEL)
    return Site(house, gateway, engine, key)


@contextmanager
def site_with(directory: Path, settings: str) -> Iterator[Site]:
    """A site in ``directory`` whose gateway has these settings, as its file has them."""
    config = directory / "gateway.toml"
    config.write_text(settings)
    built = build_site(directory, gateway_environment={"TRUNKLINE_GATEWAY_CONFIG": str(config)})
    yield built
    leave(built.house)


def leave(house: House) -> None:
    """Stop everything in it."""
    _HOUSES.remove(house)
    house.__exit__(None, None, None)


_LONG = (
    *("test_queues", "test_hung_engines", "test_compiled_loads", "test_job_loads", "test_workers"),
    *("test_cancels", "test_shared_limits", "test_wheel", "test_postgres", "test_uplinks"),
    *("test_scale_down", "test_websockets", "test_quickstart", "test_python_models", "test_dialects"),
    *("test_version_before", "test_chaos_small", "test_job_runs", "test_regions_small", "test_many_small"),
    *("test_checks", "test_budgets_of_gateways", "test_demo_model", "test_dashboard", "test_bad_batches"),
    *("test_doctor", "test_whatif", "test_openai_python", "test_placement", "test_shared_knowledge"),
)
"""Files that take long, the longest first: begun last, they would keep one process busy at the end."""

_STARTING_MUCH = [Path(__file__).parents[1] / name for name in ("integration", "chaos")]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The order of the files, which several processes take from both ends: unit tests first, which compute,
    integration tests behind them, which mostly wait, and those that take longest at the very end."""
    places = {name: place for place, name in enumerate(reversed(_LONG), 1)}

    def place(item: pytest.Item) -> tuple[bool, int]:
        starts_much = any(item.path.is_relative_to(each) for each in _STARTING_MUCH)
        return starts_much, places.get(item.path.stem, 0) if starts_much else 0

    items.sort(key=place)


@pytest.fixture(scope="session", autouse=True)
def _forks() -> None:
    """Gateways, agents and engines are forked: a test is about what they do, not about their imports."""
    use_forks()


@pytest.fixture(scope="session")
def tiny_hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face cache, as engines look for models in one, that holds the tiny model ``TINY``. Of several
    processes of one run the first makes it."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    hub, made = shared / "hub", shared / "hub-made"
    with (shared / "hub.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            model = hub / "models--tests--tiny"
            (model / "refs").mkdir(parents=True, exist_ok=True)
            (model / "refs" / "main").write_text("0")
            command = [sys.executable, "-m", "tests.support.tiny_model", str(model / "snapshots" / "0")]
            subprocess.run(command, check=True, capture_output=True, timeout=300)
            made.touch()
    return hub


@pytest.fixture(scope="session")
def tiny_model(tiny_hub: Path) -> Path:
    """The directory of the tiny model itself."""
    return tiny_hub / "models--tests--tiny" / "snapshots" / "0"


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The shared one. Leave it as it was found: idle, everything running, the engine's default script. Those
    who serve the demo model, or ``moving``, get requests in turns, however much faster one of them is. All
    tenants are of one class."""
    settings = {
        "TRUNKLINE_GATEWAY_DISPATCH__POLICIES": f'{{"{DEMO}": "round-robin", "moving": "round-robin"}}',
        "TRUNKLINE_GATEWAY_METRICS__TENANT_CLASSES": '{"everybody": ["*"]}',
    }
    built = build_site(tmp_path_factory.mktemp("site"), "--slots", "32", gateway_environment=settings)
    yield built
    leave(built.house)


@pytest.fixture(scope="session")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site whose requests wait a second and a half for an engine that has enough to do, and no minute."""
    hurry = {"TRUNKLINE_GATEWAY_QUEUE__MAX_WAIT_S": "1.5"}
    built = build_site(tmp_path_factory.mktemp("impatient"), "--slots", "32", gateway_environment=hurry)
    yield built
    leave(built.house)


@pytest.fixture(scope="session")
def demo_site(site: Site) -> Site:
    """The shared site with the demo model on offer beside the scripted one."""
    site.house.agent(site.gateway, "torch:demo", name="demo-agent")
    site.house.wait_for_model(site.gateway, site.key, DEMO)
    return site


@pytest.fixture
def new_site(tmp_path: Path) -> Iterator[Callable[..., Site]]:
    """Makes sites for this test alone: arguments are the agent's, ``gateway_environment`` the gateway's."""
    built: list[Site] = []

    def make(*agent_arguments: str, gateway_environment: Mapping[str, str] | None = None) -> Site:
        directory = tmp_path / f"site{len(built)}"
        built.append(build_site(directory, *agent_arguments, gateway_environment=gateway_environment))
        return built[-1]

    yield make
    for site in built:
        leave(site.house)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    """An empty house."""
    with House(tmp_path) as empty:
        _HOUSES.append(empty)
        yield empty
    _HOUSES.remove(empty)


@pytest.fixture(scope="session")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site that survives what tests about faults do to it."""
    built = build_site(tmp_path_factory.mktemp("faulty"), "--slots", "8")
    yield built
    leave(built.house)


@pytest.fixture
async def watched(faulty: Site) -> AsyncIterator[aiohttp.ClientSession]:
    """A client of ``faulty``; afterwards no process may hold more descriptors than before."""
    children = tuple(faulty.house.children)
    before = [descriptor_count(child.pid) for child in children]
    headers = {"authorization": f"Bearer {faulty.key}"}
    async with aiohttp.ClientSession(faulty.gateway.url, headers=headers) as session:
        yield session

    def settled() -> bool:
        now = [descriptor_count(child.pid) for child in children]
        return all(after <= count + _KEPT for after, count in zip(now, before, strict=True))

    await asyncio.to_thread(until, "descriptors are given back", settled)
    await asyncio.to_thread(faulty.engine.until_idle)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach the logs of what was running to a failure."""
    report = yield
    if report.failed:
        for house in _HOUSES:
            report.sections.extend((f"log of {name}", text) for name, text in house.logs().items())
    return report


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def opened_browser() -> AsyncIterator[Browser]:
    """The one of a module, in whose pages nothing may go wrong."""
    async with chromium() as opened:
        yield opened
        assert opened.problems == []


@pytest_asyncio.fixture(loop_scope="module")
async def browser(opened_browser: Browser) -> AsyncIterator[Browser]:
    """The same, without the pages of other tests."""
    yield opened_browser
    await opened_browser.close_pages()
