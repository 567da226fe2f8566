"""What the person copies works as it is."""

import json
import shlex
import textwrap

from gateway.tools.quickstart.page import how_to_go_on

_PAGE = how_to_go_on("http://127.0.0.1:8787/v1", "sk-tl-abc", "trunkline-demo")


def test_the_curl_line_is_one_shell_command_with_a_json_body() -> None:
    command = _PAGE.partition("With curl:")[2].partition("With Python")[0].strip()
    words = shlex.split(command.replace("\\\n", " "))
    assert words[:3] == ["curl", "-N", "http://127.0.0.1:8787/v1/chat/completions"]
    assert "authorization: Bearer sk-tl-abc" in words
    assert json.loads(words[-1])["model"] == "trunkline-demo"


def test_the_snippet_is_python() -> None:
    snippet = textwrap.dedent(_PAGE.partition("(pip install openai):")[2])
    compile(snippet, "snippet", "exec")
    assert 'api_key="sk-tl-abc"' in snippet
