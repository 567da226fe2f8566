"""The OpenAPI document held against the gateway that serves it, by schemathesis, installed beside us."""

import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from tests.support.processes import House, fetch

_ROOT = Path(__file__).parents[2]
_ENVIRONMENT = _ROOT / "tests" / ".cache" / "fuzz"
_MODEL = "scripted"


def run(examples: int, seconds: float) -> int:
    """Validates the document, then sends ``examples`` requests for every operation, for ``seconds`` at most.

    Gives an exit status; says so and gives 0 where the tools cannot be installed.
    """
    tools = _tools()
    if tools is None:
        return 0
    with tempfile.TemporaryDirectory() as directory, House(Path(directory)) as house:
        gateway = house.gateway()
        engine = house.engine("--model", _MODEL)
        key = gateway.key("fuzz")
        house.agent(gateway, engine.url)
        house.wait_for_model(gateway, key, _MODEL)
        document = fetch(f"{gateway.url}/openapi.json")
        path = Path(directory) / "openapi.json"
        path.write_text(json.dumps(document))
        checked = subprocess.run([str(tools / "openapi-spec-validator"), str(path)], check=False)
        document["components"]["schemas"]["ModelName"]["enum"] = [_MODEL, "nobody/has-this"]
        path.write_text(json.dumps(document))
        found = subprocess.run(
            [
                *(str(tools / "schemathesis"), "run", str(path), "--url", gateway.url),
                *("-H", f"Authorization: Bearer {key}", "--checks", "all", "--continue-on-failure"),
                *("--exclude-checks", "negative_data_rejection"),  # what is wrong is for engines to say
                *("--phases", "coverage,fuzzing", "--max-examples", str(examples), "--no-color"),
                *("--generation-database", "none", "--warnings", "off"),
            ],
            cwd=directory,
            timeout=seconds,
            check=False,
        )
        log = gateway.child.log.read_text()
        unforeseen = [line for line in log.splitlines() if "request_failed" in line or "Traceback" in line]
        sys.stdout.write("".join(f"{line}\n" for line in unforeseen))
        if key in log:
            sys.stdout.write("the log holds the key\n")
            return 1
        return checked.returncode or found.returncode or bool(unforeseen)


def _tools() -> Path | None:
    """Where the programs of the extra ``fuzz`` are."""
    wanted = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["fuzz"]
    stamp = _ENVIRONMENT / "installed"
    if not (stamp.exists() and stamp.read_text() == str(wanted)):
        sys.stdout.write(f"installing {', '.join(wanted)} into {_ENVIRONMENT}\n")
        sys.stdout.flush()
        try:
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(_ENVIRONMENT)], check=True)
            install = [str(_ENVIRONMENT / "bin" / "python"), "-m", "pip", "install", "--quiet", *wanted]
            subprocess.run(install, check=True, stderr=subprocess.PIPE)
        except subprocess.CalledProcessError as error:
            said = (error.stderr or b"").decode("utf-8", "replace").strip().splitlines()[-1:]
            sys.stdout.write(f"the OpenAPI document is NOT tested, its tools cannot be installed: {said}\n")
            return None
        stamp.write_text(str(wanted))
    return _ENVIRONMENT / "bin"
