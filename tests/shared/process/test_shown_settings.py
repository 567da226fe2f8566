"""Settings as they are shown: where each comes from, and nothing secret."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr

from shared.process.settings import ReadErrors, SettingsFile, SettingsSources
from shared.process.shown_settings import HIDDEN, shown_settings


class _Table(BaseModel):
    size: int = 1
    token: SecretStr | None = None


class _Each(BaseModel):
    url: str
    command: list[str] = []


class _All(BaseModel):
    name: str = "a"
    table: _Table = _Table()
    each: list[_Each] = []
    labels: dict[str, str] = {}


def _shown(tmp_path: Path, text: str = "", **environment: str) -> dict[str, tuple[Any, str]]:
    file = tmp_path / "settings.toml"
    file.write_text(text)
    read = SettingsFile.read(file, ReadErrors("{0} {1}", "{0}", "{0} {1}"))
    sources = SettingsSources(_All, "T_", {"name": "flagged"}, environment, read, delimiter="__")
    settings = sources.load(str)
    found = shown_settings(settings, sources, secret={"command"}, instead={"labels": {"a": "…"}})
    return {each.path: (each.value, each.origin.kind) for each in found}


def test_every_setting_is_shown_with_its_source(tmp_path: Path) -> None:
    found = _shown(tmp_path, '[[each]]\nurl = "http://a"\n', T_TABLE__SIZE="3")
    assert found["name"] == ("flagged", "flag")
    assert found["table.size"] == (3, "environment")
    assert found["each[0].url"] == ("http://a", "file")
    assert found["table.token"] == (None, "default")


def test_secrets_are_hidden_by_their_type_and_by_their_name(tmp_path: Path) -> None:
    text = '[table]\ntoken = "hush"\n[[each]]\nurl = "http://a"\ncommand = ["run", "--key", "hush"]\n'
    found = _shown(tmp_path, text)
    assert found["table.token"] == (HIDDEN, "file")
    assert found["each[0].command"] == (HIDDEN, "file")
    assert "hush" not in str(found)


def test_what_is_said_instead_of_a_value_is_shown(tmp_path: Path) -> None:
    assert _shown(tmp_path)["labels"][0] == {"a": "…"}


class _Place(BaseModel):
    state: Path = Path()


def test_paths_of_bytes_that_are_no_text_are_shown_with_these_escaped(tmp_path: Path) -> None:
    odd = tmp_path / os.fsdecode(b"a\xff.toml")
    file = SettingsFile(odd, "", {})
    sources = SettingsSources(_Place, "T_", {}, {"T_STATE": os.fsdecode(b"b\xff")}, file)
    (found,) = shown_settings(sources.load(str), sources)
    assert found.as_json()["value"] == "b\\udcff"
    assert found.as_line().encode()
    named = replace(sources, environment={}, file=replace(file, values={"state": "."}))
    (of_file,) = shown_settings(named.load(str), named)
    assert of_file.as_line().encode()
