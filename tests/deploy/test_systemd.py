"""The units of ``deploy/systemd``, as systemd itself judges them."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.processes import command

_UNITS = Path(__file__).parents[2] / "deploy" / "systemd"
_EXPOSURE = {"trunkline-gateway.service": 2.0, "trunkline-agent.service": 4.2}
"""The most that ``systemd-analyze security`` may say of each, of 10."""


def _analyze(*arguments: str) -> str:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed, so units are not judged")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=120)
    if "Unknown command verb" in done.stderr or "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze is too old to judge files")
    return done.stdout + done.stderr


@pytest.mark.parametrize("unit", _EXPOSURE)
def test_a_unit_is_hardened(unit: str) -> None:
    said = _analyze("security", "--offline=true", "--no-pager", str(_UNITS / unit))
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", said)
    assert found is not None, said
    assert float(found[1]) <= _EXPOSURE[unit]


@pytest.mark.parametrize("unit", _EXPOSURE)
def test_systemd_reads_a_unit_without_a_complaint(unit: str, tmp_path: Path) -> None:
    program, account = tmp_path / "trunkline", "root"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    text = (_UNITS / unit).read_text().replace("/opt/trunkline/bin/trunkline", str(program))
    copy = tmp_path / unit
    copy.write_text(re.sub(r"^User=.*$", f"User={account}", text, flags=re.MULTILINE))
    complaints = [line for line in _analyze("verify", str(copy)).splitlines() if unit in line]
    assert complaints == []


@pytest.mark.parametrize("unit", _EXPOSURE)
def test_a_unit_is_started_again_however_often_and_soon_it_ends(unit: str) -> None:
    of_unit, _, of_service = _read(unit).partition("[Service]")
    assert "\nStartLimitIntervalSec=0\n" in of_unit
    assert "\nRestart=always\n" in of_service


@pytest.mark.parametrize("unit", _EXPOSURE)
def test_a_unit_starts_what_the_command_line_knows(unit: str) -> None:
    found = re.search(r"^ExecStart=/opt/trunkline/bin/trunkline (\w+) (--\w+)", _read(unit), re.MULTILINE)
    assert found is not None
    done = subprocess.run(command(found[1], "--help"), capture_output=True, text=True, timeout=60)
    assert found[2] in done.stdout
    (stops_after,) = re.findall(r"^TimeoutStopSec=(\d+)$", _read(unit), re.MULTILINE)
    assert int(stops_after) > 60, "longer than drain_s of deploy/*.toml"


def _read(unit: str) -> str:
    return (_UNITS / unit).read_text()
