"""Settings come from flags, variables and a file; each knows from where, and mistakes are named with it."""

import tomllib
from math import inf
from pathlib import Path

import pytest

from tests.gateway.runtime.config.loading import complaint, loaded


def test_without_anything_the_defaults_hold() -> None:
    settings = loaded().settings
    assert settings.listen == "127.0.0.1:8700"
    assert settings.http.body_bytes == 64 * 1024 * 1024
    assert settings.drain_s == 30


def test_a_flag_beats_the_environment_which_beats_the_file(file: Path) -> None:
    file.write_text('listen = "127.0.0.1:1"\ndrain_s = 1\n[http]\ncomment_s = 1\nhead_s = 1\n')
    settings = loaded(
        {"listen": "127.0.0.1:3"}, file, LISTEN="127.0.0.1:2", DRAIN_S="2", HTTP__COMMENT_S="2"
    ).settings
    assert settings.listen == "127.0.0.1:3"
    assert settings.drain_s == 2
    assert (settings.http.comment_s, settings.http.head_s) == (2, 1)


def test_an_unknown_key_in_the_file_is_named_with_its_line(file: Path) -> None:
    file.write_text('listen = "127.0.0.1:1"\n\n[http]\n# comment\nbodybytes = 5\n[htpp]\nx = 1\n')
    said = complaint(None, file)
    assert f"http.bodybytes: there is no such key (line 5 of {file})" in said
    assert f"htpp: there is no such key (line 6 of {file})" in said


def test_an_impossible_value_is_named_with_its_key_and_place(file: Path) -> None:
    file.write_text("[queue]\nmax_wait_s = -1\n")
    assert "queue.max_wait_s = -1" in complaint(None, file)
    assert f"(line 2 of {file})" in complaint(None, file)
    said = complaint(HTTP__BODY_BYTES="many")
    assert "http.body_bytes = 'many'" in said
    assert "(environment TRUNKLINE_GATEWAY_HTTP__BODY_BYTES)" in said
    assert "(flag --log-level)" in complaint({"log": {"level": "loud"}})


def test_a_file_that_is_not_there_is_named_as_it_was_written(tmp_path: Path) -> None:
    said = complaint({"tls": {"cert": tmp_path / "nope.pem"}})
    assert f"tls.cert = '{tmp_path / 'nope.pem'}': there is no such file" in said


def test_an_inline_table_and_dotted_keys_have_lines_too(file: Path) -> None:
    file.write_text('log = { level = "loud" }\nhttp.comment_s = 0\n')
    said = complaint(None, file)
    assert f"(line 1 of {file})" in said
    assert f"(line 2 of {file})" in said


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TRUSTED_PROXIES", "10.0.0.0/8"),
        ("HTTP__CORS_ORIGINS", "https://app.test"),
        ("QUEUE__TENANT_WEIGHTS", "a=3"),
        ("HTTP", "x"),
        ("OIDC", "[}"),
    ],
)
def test_a_variable_that_holds_a_list_or_a_table_is_json(name: str, value: str) -> None:
    assert f"TRUNKLINE_GATEWAY_{name}: write lists and tables as JSON" in complaint(
        None, None, **{name: value}
    )


def test_an_unknown_variable_is_an_error() -> None:
    assert "TRUNKLINE_GATEWAY_LISTN: there is no such setting" in complaint(LISTN="x")
    assert "TRUNKLINE_GATEWAY_HTTP__X" in complaint(HTTP__X="x")


def test_the_variable_that_names_the_file_is_known() -> None:
    assert loaded(CONFIG="/etc/gateway.toml")


@pytest.mark.parametrize(
    ("text", "says"), [("listen = ", "is not valid TOML"), ('listen = "\udcff"', "cannot read")]
)
def test_a_file_that_cannot_be_read_is_said(file: Path, text: str, says: str) -> None:
    file.write_bytes(text.encode(errors="surrogateescape"))
    assert says in complaint(None, file)


def test_a_file_that_is_not_there_is_said(file: Path) -> None:
    assert "cannot read" in complaint(None, file)


def test_what_is_shown_can_be_loaded_again_and_says_where_it_came_from(file: Path) -> None:
    file.write_text('[queue]\nmax_requests = 7\n[placement]\npinned = ["a-*", "b\\"c"]\n')
    shown = loaded({"state": Path("/s\\t"), "log": {"level": "debug"}}, file, DRAIN_S="5").toml()
    assert "max_requests = 7  # line 2 of" in shown
    assert "drain_s = 5.0  # environment TRUNKLINE_GATEWAY_DRAIN_S" in shown
    assert 'level = "debug"  # flag --log-level' in shown
    assert tomllib.loads(shown)["state"] == "/s\\t"
    file.write_text(shown)
    again = loaded(None, file).settings
    assert (again.queue.max_requests, again.drain_s, again.log.level) == (7, 5.0, "debug")
    assert again.placement.pinned == ["a-*", 'b"c']


def test_lists_of_tables_and_what_is_infinite_are_shown_as_toml_that_is_read_again(file: Path) -> None:
    queue = {"kind": "redis-stream", "url": "redis://h/0", "queue": "in", "key": "k"}
    regions = {"home": "eu", "prices": {"us": inf, "eu>ap": 2.0}, "shifts": [{"to": "ap", "share": 0.1}]}
    found = loaded({"jobs": {"queues": [queue | {"name": each} for each in ("a", "b")]}, "regions": regions})
    shown = tomllib.loads(found.toml())
    assert [each["name"] for each in shown["jobs"]["queues"]] == ["a", "b"]
    file.write_text(found.toml().replace('"**********"', '"redis://h/0"'))
    again = loaded(None, file).settings
    assert (again.regions, again.jobs) == (found.settings.regions, found.settings.jobs)


def test_settings_with_any_character_are_shown_as_toml_that_is_read_again() -> None:
    name = 'a\n"b"\t\x7f\\é'
    found = loaded({"state": Path(name), "queue": {"tenant_weights": {name: 2.0}}})
    shown = tomllib.loads(found.toml())
    assert (shown["state"], shown["queue"]["tenant_weights"]) == (name, {name: 2.0})


def test_each_value_names_where_it_really_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "f.toml"
    file.write_text(
        "listen = '127.0.0.1:8'\n[http]\nbody_bytes = 1000000\n[[oidc]]\nissuer = 'https://a.example'\n"
        "audience = 'x'\n[[oidc]]\nissuer = 'https://b.example'\naudience = 'y'\nskew_s = 5\n"
    )
    shown = loaded({"drain_s": 3.0}, file, HTTP='{"buffer_bytes": 2000000}', QUEUE__MAX_REQUESTS="7").toml()
    lines = shown.splitlines()
    assert f'listen = "127.0.0.1:8"  # line 1 of {file}' in lines
    assert "drain_s = 3.0  # flag --drain-s" in lines
    assert f"body_bytes = 1000000  # line 3 of {file}" in lines
    assert "buffer_bytes = 2000000  # environment TRUNKLINE_GATEWAY_HTTP" in lines
    assert "head_bytes = 65536  # default" in lines, "not the line of its table, nor a variable of another"
    assert "max_requests = 7  # environment TRUNKLINE_GATEWAY_QUEUE__MAX_REQUESTS" in lines
    assert f'issuer = "https://b.example"  # line 8 of {file}' in lines
    assert "skew_s = 60.0  # default" in lines
    assert f"skew_s = 5.0  # line 10 of {file}" in lines
    assert "# state is not set" in lines
