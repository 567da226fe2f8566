"""The model's own name takes the alias's place in a body, and every other byte stays."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain.errors import PathTooLong
from gateway.domain.json_members import Edit, model_edits
from gateway.domain.request import Principal, Request, RequestBody
from gateway.domain.surface import PATH_BYTES
from gateway.pipeline.aliases.rewrite import UNPARSED_NAMES, form_edits, rename
from shared.protocol.messages import Headers

JSON_TYPE = ("content-type", "application/json")


def request(body: bytes, *headers: tuple[str, str], route: str = "chat", model: str = "prod") -> Request:
    return Request(
        id="r1",
        principal=Principal("k", "key", "tenant"),
        method="POST",
        path="/v1/chat/completions",
        headers=(*headers, ("content-length", str(len(body)))),
        model=model,
        route=route,
        streaming=False,
        body=RequestBody(body, None, len(body)),
        arrived_s=0.0,
        need=route,
    )


def edited(body: bytes, edits: list[Edit]) -> bytes:
    held = RequestBody(body)
    held.edit(edits)
    return held.prefix


def json_renamed(body: bytes, before: str, after: str) -> bytes:
    return edited(body, model_edits(body, before, after))


def form_renamed(body: bytes, content_type: bytes, before: str, after: str) -> bytes:
    return edited(body, form_edits(body, content_type, before, after))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"model":"prod","n":1.0e0}', b'{"model":"m/x","n":1.0e0}'),
        (b' {\n "n": 1, "model" :\t"prod" }', b' {\n "n": 1, "model" :\t"m/x" }'),
        (
            b'{"messages":[{"content":"\\"model\\":\\"prod\\""}],"model":"prod"}',
            b'{"messages":[{"content":"\\"model\\":\\"prod\\""}],"model":"m/x"}',
        ),
        (b'{"a":{"model":"prod"},"model":"prod"}', b'{"a":{"model":"prod"},"model":"m/x"}'),
        (b'{"a":[{"model":"prod"}],"model":"prod"}', b'{"a":[{"model":"prod"}],"model":"m/x"}'),
        (b'{"model":"prod","a":{"model":"prod"}}', b'{"model":"m/x","a":{"model":"prod"}}'),
        (b'{"user":"model","model":"prod"}', b'{"user":"model","model":"m/x"}'),
        (b'{"say":"\\\\\\"model","model":"prod"}', b'{"say":"\\\\\\"model","model":"m/x"}'),
        (b'{"m\\u006fdel":"prod"}', b'{"m\\u006fdel":"m/x"}'),
        (b'{"m\\u006Fdel":"prod","x":{"model":"prod"}}', b'{"m\\u006Fdel":"m/x","x":{"model":"prod"}}'),
        (b'{"model":"pr\\u006fd"}', b'{"model":"m/x"}'),
        (b'{"model":"prod","model":"prod"}', b'{"model":"m/x","model":"m/x"}'),
        (b'{"model":"other","model":"prod"}', b'{"model":"other","model":"m/x"}'),
        (b'{"model":7,"model":"prod"}', b'{"model":7,"model":"m/x"}'),
    ],
)
def test_the_member_is_found_wherever_and_however_it_is_written(body: bytes, expected: bytes) -> None:
    assert json_renamed(body, "prod", "m/x") == expected


def test_names_are_quoted_as_json_wants_it() -> None:
    assert json.loads(json_renamed(b'{"model":"prod"}', "prod", 'a"b\\é')) == {"model": 'a"b\\é'}


TEXTS = st.sampled_from(["model", "prod", '"model":"prod"', "\\", '"', "{", "x", "mod\u0065l", ""]) | st.text(
    max_size=6
)
VALUES = st.recursive(
    TEXTS | st.integers(-5, 5) | st.none() | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=80)
@given(
    st.dictionaries(TEXTS, VALUES, max_size=4),
    st.integers(0, 4),
    st.sampled_from([None, 1]),
    st.booleans(),
)
def test_only_the_models_name_changes_in_any_object(
    members: dict[str, Any], place: int, indent: int | None, ascii_only: bool
) -> None:
    pairs = [(key, value) for key, value in members.items() if key != "model"]
    pairs.insert(place, ("model", "prod"))
    body = json.dumps(dict(pairs), indent=indent, ensure_ascii=ascii_only).encode("utf-8", "replace")
    renamed = json_renamed(body, "prod", "m")
    assert orjson.loads(renamed) == orjson.loads(body) | {"model": "m"}
    assert len(body) - len(renamed) == len("prod") - len("m")


def test_a_request_asks_for_the_model_with_a_length_that_is_right() -> None:
    asked = request(b'{"model":"prod"}', JSON_TYPE)
    rename(asked, "meta/llama")
    assert (asked.model, asked.body.prefix) == ("meta/llama", b'{"model":"meta/llama"}')
    assert asked.body.size_bytes == len(asked.body.prefix)
    assert asked.headers == (JSON_TYPE, ("content-length", "22"))


def test_an_alias_with_the_models_own_name_costs_the_body_nothing() -> None:
    body = b'{"model":"m"}'
    asked = request(body, JSON_TYPE, model="m")
    rename(asked, "m")
    assert asked.body.prefix is body


@pytest.mark.parametrize(
    ("body", "kind", "route"),
    [
        (b'{"messages":[]}', "application/json", "chat"),  # it came in x-model
        (b"RIFF\x00\x00{", "audio/wav", "audio"),
        (b"", "application/json", "chat"),
        (b'["model","prod"]', "application/json", "any"),
        (b'{"graph":{"model":"prod"}}', "application/json", "any"),
        (b'{"model":"somebody-else"}', "application/json", "any"),
        (b'{"model":', "application/json", "any"),
        (b'{"model":"pr\xff"}', "application/json", "any"),
    ],
)
def test_a_body_that_does_not_name_the_alias_stays_as_it_is(body: bytes, kind: str, route: str) -> None:
    asked = request(body, ("content-type", kind), route=route)
    rename(asked, "m")
    assert (asked.model, asked.body.prefix, asked.body.size_bytes) == ("m", body, len(body))


def test_a_body_on_an_engines_own_path_names_the_model_if_it_named_the_alias() -> None:
    asked = request(b'{"x":{"model":"prod"},"model":"prod"}', JSON_TYPE, route="any")
    rename(asked, "m")
    assert asked.body.prefix == b'{"x":{"model":"prod"},"model":"m"}'


FORM = (
    b'--B\r\nContent-Disposition: form-data; name="file"; filename="model"\r\n\r\nprod\r\n'
    b"--B\r\ncontent-disposition: form-data; name=model\r\nContent-Type: text/plain\r\n\r\nprod\r\n"
    b'--B\r\nContent-Disposition: form-data; name="prompt"\r\n\r\nprod name="model"\r\n\r\nprod\r\n'
    b"--B--\r\n"
)
FORM_TYPE = ("content-type", "Multipart/form-data; boundary=B")


@pytest.mark.parametrize("name", [b"model", b"m\\u006fdel"])
def test_a_body_that_nobody_has_parsed_may_name_the_model_only_so_often(name: bytes) -> None:
    for times, renamed in ((UNPARSED_NAMES - 2, True), (UNPARSED_NAMES + 1, False)):
        nested = b'{"%b":"prod"},' % name * times
        asked = request(b'{"model":"prod","x":[%b0]}' % nested, JSON_TYPE, route="any")
        rename(asked, "llama-3-8b")
        assert asked.body.prefix.startswith(b'{"model":"llama-3-8b"') is renamed


def test_a_forms_field_is_renamed_and_its_files_are_not() -> None:
    renamed = form_renamed(FORM, FORM_TYPE[1].encode(), "prod", "meta/llama")
    assert renamed == FORM.replace(b"text/plain\r\n\r\nprod", b"text/plain\r\n\r\nmeta/llama")


def test_a_form_that_is_still_coming_gets_the_length_it_will_have() -> None:
    async def rest() -> Any:
        yield b""

    cut = FORM.index(b'--B\r\nContent-Disposition: form-data; name="prompt"') + 20
    headers: Headers = (FORM_TYPE,)
    asked = request(FORM[:cut], *headers, route="audio")
    asked.body = RequestBody(FORM[:cut], rest(), 5000)
    asked.headers = (FORM_TYPE, ("content-length", "5000"))
    rename(asked, "m")
    assert (asked.body.size_bytes, asked.headers[1]) == (4997, ("content-length", "4997"))
    assert asked.body.prefix == FORM[:cut].replace(b"text/plain\r\n\r\nprod", b"text/plain\r\n\r\nm")


def test_a_form_cut_anywhere_is_renamed_as_far_as_its_field_is_whole() -> None:
    start = FORM.index(b"text/plain\r\n\r\n") + len(b"text/plain\r\n\r\n")
    whole = start + len(b"prod\r\n--B")
    for cut in range(len(FORM)):
        renamed = form_renamed(FORM[:cut], FORM_TYPE[1].encode(), "prod", "m")
        expected = FORM[:start] + b"m" + FORM[start + 4 : cut] if cut >= whole else FORM[:cut]
        assert renamed == expected


def test_a_model_in_the_path_of_inference_is_renamed_there_and_the_body_left_alone() -> None:
    body = b'{"model":"prod","inputs":[]}'
    asked = request(body, route="infer")
    asked.path = "/v2/models/prod/versions/1/infer"
    rename(asked, "org/iris")
    assert (asked.model, asked.path) == ("org/iris", "/v2/models/org%2Firis/versions/1/infer")
    assert asked.body.prefix == body


def test_a_workflow_in_the_path_is_renamed_there_and_the_body_left_alone() -> None:
    body = b'{"inputs":{"model":"prod"}}'
    asked = request(body, route="workflows")
    asked.path = "/v1/workflows/prod?x=1"
    rename(asked, "org/flux")
    assert (asked.model, asked.path) == ("org/flux", "/v1/workflows/org%2Fflux?x=1")
    assert asked.body.prefix == body


@pytest.mark.parametrize(
    ("route", "path", "renamed"),
    [
        ("predict", "/v1/models/prod/versions/2:predict?x=1", "/v1/models/org%2Fm/versions/2:predict?x=1"),
        ("predictions", "/predictions/prod/1.0", "/predictions/org%2Fm/1.0"),
    ],
)
def test_a_model_in_another_servers_path_is_renamed_there(route: str, path: str, renamed: str) -> None:
    asked = request(b"{}", route=route)
    asked.path = path
    rename(asked, "org/m")
    assert (asked.model, asked.path, asked.body.prefix) == ("org/m", renamed, b"{}")


@pytest.mark.parametrize(
    ("route", "path", "upgrade"),
    [
        ("infer", "/v2/models/prod/infer?x=", False),
        ("predict", "/v1/models/prod:predict?x=", False),
        ("workflows", "/v1/workflows/prod?x=", False),
        ("realtime", "/v1/realtime?model=prod&x=", True),
    ],
)
def test_a_path_that_the_models_own_name_makes_longer_than_agents_take_is_refused(
    route: str, path: str, upgrade: bool
) -> None:
    asked = request(b"", route=route)
    asked.path = path + "a" * (PATH_BYTES - len(path) - 1)
    asked.upgrade = upgrade
    rename(asked, "prod2")
    assert len(asked.path) == PATH_BYTES
    with pytest.raises(PathTooLong):
        rename(asked, "prod22")
