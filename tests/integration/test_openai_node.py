"""The OpenAI Node SDK, unmodified, sees an OpenAI server. The checks are in ``openai_node/check.mjs``."""

import asyncio
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.integration.conftest import MODEL, Site

_HERE = Path(__file__).parent / "openai_node"
_CACHE = Path(__file__).parents[1] / ".cache" / "openai_node"
_LEAST_CHECKS = 20

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def sdk_directory() -> Path:
    """A directory with the SDK and the checks; installed once, kept in ``tests/.cache``."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed, so the OpenAI Node SDK cannot be tried")
    _CACHE.mkdir(parents=True, exist_ok=True)
    wanted = (_HERE / "package.json").read_text()
    stamp = _CACHE / "installed.json"
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.copy(_HERE / "package.json", _CACHE)
        command = ["npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error"]
        done = subprocess.run(command, cwd=_CACHE, capture_output=True, text=True, timeout=300)
        if done.returncode:
            pytest.skip(f"npm could not install the OpenAI Node SDK: {done.stderr.strip()[-500:]}")
        stamp.write_text(wanted)
    shutil.copy(_HERE / "check.mjs", _CACHE)
    return _CACHE


async def test_the_node_sdk_does_everything_the_python_sdk_does(impatient: Site, sdk_directory: Path) -> None:
    engine = impatient.engine.url
    facts = {"base_url": impatient.base_url, "key": impatient.key, "model": MODEL, "engine": engine}
    done = await asyncio.to_thread(
        subprocess.run,
        ["node", "check.mjs", json.dumps(facts)],
        cwd=sdk_directory,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    failed = [f"{result['name']}: {result['detail']}" for result in results if not result["ok"]]
    assert not failed, "\n".join(failed)
    assert len(results) >= _LEAST_CHECKS
