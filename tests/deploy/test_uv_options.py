import pytest

from deploy.uv_options import uv_options


def test_without_configuration_there_are_no_options() -> None:
    assert uv_options([]) == []


def test_indexes_links_and_certificates_are_those_of_pip() -> None:
    lines = [
        "global.index-url='https://packages.example/simple'\n",
        "global.extra-index-url='https://a.example/simple https://b.example/simple'\n",
        "install.find-links='/wheels'\n",
        "global.cert='/etc/ca.pem'\n",
        "global.timeout='60'\n",
        "install.no-index='true'\n",
        "global.constraint='/etc/pip/constraints.txt'\n",
    ]
    assert uv_options(lines) == [
        "--default-index=https://packages.example/simple",
        "--index=https://a.example/simple",
        "--index=https://b.example/simple",
        "--find-links=/wheels",
        "--cert=/etc/ca.pem",
        "--no-index",
        "--constraints=/etc/pip/constraints.txt",
    ]


def test_the_environment_goes_before_files_and_a_command_before_all_commands() -> None:
    lines = [
        ":env:.index-url='https://environment.example'",
        "install.index-url='https://install.example'",
        "global.index-url='https://global.example'",
        "install.cert='/install.pem'",
        "global.cert='/global.pem'",
    ]
    assert uv_options(lines) == ["--default-index=https://environment.example", "--cert=/install.pem"]


def test_what_another_command_of_pip_is_told_does_not_matter() -> None:
    assert uv_options(["download.dest='/tmp'", "global.no-index='false'"]) == []


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("global.trusted-host='packages.example'", "uv has nothing for pip's trusted-host"),
        (":env:.client-cert='/me.pem'", "uv has nothing for pip's client-cert"),
        ("global.index-url='https://me:secret@packages.example/simple'", "pip's index-url has a user"),
        ("global.extra-index-url='https://a.example/x https://secret@b.example'", "pip's extra-index-url"),
        ("nonsense", "a line without a value: nonsense"),
    ],
)
def test_what_uv_cannot_be_told_is_said(line: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        uv_options([line])
    assert "secret" not in str(caught.value)
