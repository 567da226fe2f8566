"""Where the state is when nobody says."""

from pathlib import Path

import pytest

from gateway.domain import state_dir as location
from gateway.domain.state_dir import default_state_dir, own_state_dir

HOME = Path("/home/ada")


def test_a_user_has_it_in_the_home_directory() -> None:
    assert default_state_dir({}, HOME, is_root=False) == HOME / ".local/state/trunkline"


def test_the_xdg_directory_wins_when_it_is_absolute() -> None:
    assert default_state_dir({"XDG_STATE_HOME": "/x"}, HOME, is_root=False) == Path("/x/trunkline")
    relative = default_state_dir({"XDG_STATE_HOME": "x"}, HOME, is_root=False)
    assert relative == HOME / ".local/state/trunkline"


def test_root_has_it_in_var_lib_where_that_was_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(location, "SYSTEM_STATE", tmp_path)
    assert default_state_dir({}, HOME, is_root=True) == tmp_path
    monkeypatch.setattr(location, "SYSTEM_STATE", tmp_path / "missing")
    assert default_state_dir({}, HOME, is_root=True) == HOME / ".local/state/trunkline"


def test_an_agent_that_root_runs_does_not_move_the_gateways_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(location, "SYSTEM_STATE", tmp_path)
    (tmp_path / "agent").mkdir()
    assert default_state_dir({}, HOME, is_root=True) == HOME / ".local/state/trunkline"
    (tmp_path / "gateway.db").touch()
    assert default_state_dir({}, HOME, is_root=True) == tmp_path


def test_a_user_without_a_home_directory_has_a_usual_place_too(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    assert own_state_dir() == Path("/.local/state/trunkline")
