"""One loader for both programs: which source wins, and where each value comes from."""

import os
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, ConfigDict, Field
from pydantic_settings import NoDecode

from shared.process.settings import (
    ConfigError,
    ReadErrors,
    SettingsFile,
    SettingsMistake,
    SettingsSources,
)

READ_ERRORS = ReadErrors("{0} unreadable: {1}", "{0} not UTF-8", "{0} not TOML: {1}")


class Table(BaseModel):
    model_config = ConfigDict(extra="forbid")

    size: Annotated[int, Field(ge=0)] = 1
    names: dict[str, int] = {}


class Sample(BaseModel):
    model_config = ConfigDict(extra="forbid")

    count: int = 0
    table: Table = Table()
    rows: list[Table] = []
    text: Annotated[tuple[str, ...], NoDecode] = ()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "sample.toml"


def sources(file: Path | None = None, flags: Any = None, **variables: str) -> SettingsSources[Sample]:
    return SettingsSources(
        Sample,
        "APP_",
        flags or {},
        {f"APP_{name}": text for name, text in variables.items()},
        SettingsFile.read(file, READ_ERRORS),
        delimiter="__",
    )


def mistakes(found: SettingsSources[Sample]) -> dict[str, str]:
    """Where each comes from, by its path."""
    collected: list[SettingsMistake] = []

    def collect(mistake: SettingsMistake) -> str:
        collected.append(mistake)
        return mistake.message

    with pytest.raises(ConfigError) as caught:
        found.load(collect)
    assert str(caught.value).splitlines() == [each.message for each in collected]
    return {".".join(map(str, each.path)): str(each.origin) for each in collected}


def test_tables_of_several_sources_are_merged_and_the_first_source_wins(file: Path) -> None:
    file.write_text("count = 1\n[table]\nsize = 1\nnames = {a = 1, b = 1}\n")
    found = sources(file, {"count": 3}, COUNT="2", TABLE='{"size": 2, "names": {"b": 2}}')
    assert found.load(str).model_dump() == {
        "count": 3,
        "table": {"size": 2, "names": {"a": 1, "b": 2}},
        "rows": [],
        "text": (),
    }
    told = {path: str(found.origin(path)) for path in [("count",), ("table", "size"), ("text",)]}
    assert told == {
        ("count",): "flag --count",
        ("table", "size"): "environment APP_TABLE",
        ("text",): "default",
    }
    assert str(found.origin(("table", "names", "a"))) == f"line 4 of {file}"


def test_a_list_takes_the_place_of_a_whole_list(file: Path) -> None:
    file.write_text("[[rows]]\nsize = 5\n[[rows]]\nsize = 6\n")
    found = sources(file, ROWS='[{"names": {"a": 1}}]')
    assert [row.size for row in found.load(str).rows] == [1]
    assert str(found.origin(("rows", 0, "size"))) == "default", "the file's first row is another one"
    assert str(sources(file).origin(("rows", 1, "size"))) == f"line 4 of {file}"


def test_mistakes_have_the_line_of_their_own_table_and_key(file: Path) -> None:
    file.write_text(
        "[[rows]]\nsize = 1\n[[rows]]\nsize = -1\nnone = 1\n[rows.names]\nx = 'y'\n"
        "[table.names]\n'a.b' = 'x'\n[other]\n"
    )
    assert mistakes(sources(file)) == {
        "rows.1.size": f"line 4 of {file}",
        "rows.1.none": f"line 5 of {file}",
        "rows.1.names.x": f"line 7 of {file}",
        "table.names.a.b": f"line 9 of {file}",
        "other": f"line 10 of {file}",
    }


def test_a_list_of_tables_is_where_its_first_one_is(file: Path) -> None:
    file.write_text("count = 1\n[[rows]]\nsize = 1\n[[rows]]\nsize = 2\n")
    assert str(sources(file).origin(("rows",))) == f"line 2 of {file}"


def test_only_variables_that_hold_lists_and_tables_are_json() -> None:
    assert sources(TABLE__SIZE="3").load(str).table.size == 3
    with pytest.raises(ConfigError, match=r"^APP_ROWS: write lists") as caught:
        sources(ROWS="x", TEXT="y").load(str)
    assert "APP_TEXT" not in str(caught.value)
    assert mistakes(sources(TEXT="y")) == {"text": "environment APP_TEXT"}


def test_an_empty_variable_is_none_where_that_is_wanted(file: Path) -> None:
    file.write_text("count = 'x'\n")
    found = sources(file, COUNT="")
    assert mistakes(found) == {"count": "environment APP_COUNT"}
    told = SettingsSources(Sample, "APP_", {}, found.environment, found.file, ignore_empty=True)
    assert mistakes(told) == {"count": f"line 1 of {file}"}


def test_variables_with_which_kubernetes_tells_of_services_are_no_mistakes() -> None:
    service = {
        "SERVICE_HOST": "10.0.0.1",
        "SERVICE_PORT": "80",
        "SERVICE_PORT_HTTP": "80",
        "PORT": "tcp://10.0.0.1:80",
        "PORT_80_TCP": "tcp://10.0.0.1:80",
        "PORT_80_TCP_PROTO": "tcp",
        "PORT_80_TCP_PORT": "80",
        "PORT_80_TCP_ADDR": "10.0.0.1",
    }
    metrics = {f"METRICS_{name}": text for name, text in service.items()}
    assert sources(None, **service, **metrics).unknown_variables() == []
    assert sources(None, **service, PROT="1").unknown_variables() == ["APP_PROT"]
    assert sources(None, PORT="80").unknown_variables() == ["APP_PORT"]


def test_variables_that_set_nothing_are_found() -> None:
    found = sources(COUNT="1", TABLE__SIZE="1", TABLE__X="1", FILE="f", OTHER="1")
    assert found.unknown_variables("APP_FILE") == ["APP_OTHER", "APP_TABLE__X"]
    flat = SettingsSources(Sample, "APP_", {}, {"APP_TABLE__SIZE": "1", "app_count": "1"}, SettingsFile())
    assert flat.unknown_variables() == ["APP_TABLE__SIZE"]


@pytest.mark.parametrize(
    ("content", "told"),
    [(None, "unreadable: No such file"), (b"\xff", "not UTF-8"), (b"a = ", "not TOML: ")],
)
def test_a_file_that_cannot_be_read_is_told(file: Path, content: bytes | None, told: str) -> None:
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=f"^{file} {told}"):
        SettingsFile.read(file, READ_ERRORS)


def test_a_byte_order_mark_is_no_part_of_a_file(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbfcount = 1\n")
    assert sources(file).load(str).count == 1


@pytest.mark.parametrize("text", ["rows = " + "[" * 100_000, "count = " + "9" * 5000])
def test_a_file_that_no_program_can_take_in_is_told(file: Path, text: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError, match="not TOML: "):
        sources(file)


class Place(BaseModel):
    path: Annotated[Path, Field()] | None = None


class Places(BaseModel):
    name: str = ""
    labels: Annotated[tuple[str, ...], NoDecode] = ()
    place: Place = Place()


def test_a_variable_with_bytes_that_are_no_text_is_named_unless_it_is_a_path() -> None:
    bytes_ = os.fsdecode(b"a\xff")
    given = {"APP_NAME": bytes_, "APP_LABELS": bytes_, "APP_PLACE__PATH": bytes_, "OTHER": bytes_}
    with pytest.raises(ConfigError) as caught:
        SettingsSources(Places, "APP_", {}, given, SettingsFile(), delimiter="__").load(str)
    assert [line.partition(":")[0] for line in str(caught.value).splitlines()] == ["APP_NAME", "APP_LABELS"]
    assert bytes_ not in str(caught.value)
    alone = SettingsSources(
        Places, "APP_", {}, {"APP_PLACE__PATH": bytes_}, SettingsFile(), delimiter="__"
    ).load(str)
    assert alone.place.path == Path(bytes_)
