"""Prints the options with which uv finds what pip is configured to find, one on each line.

Reads what ``pip config list`` prints. Ends with 1 if pip is configured with something that may matter to the
choice of packages and that uv has no option for, or with a password, which others would see there: then
pip itself is to be used. Needs the standard library alone, as it runs before anything is installed.
"""

import ast
import sys
from collections.abc import Iterable
from urllib.parse import urlsplit

_LISTS = {"constraint": "--constraints", "extra-index-url": "--index", "find-links": "--find-links"}
_VALUES = {"index-url": "--default-index", "cert": "--cert"}
_SWITCHES = {"no-index": "--no-index", "no-cache-dir": "--no-cache"}
_OF_PIP_ALONE = {
    "default-timeout",
    "disable-pip-version-check",
    "no-color",
    "no-input",
    "no-warn-script-location",
    "progress-bar",
    "quiet",
    "retries",
    "root-user-action",
    "timeout",
    "verbose",
}
_SECTIONS = ("global", "install", ":env:")
"""Of pip's configuration; a later one wins."""


def uv_options(configuration: Iterable[str]) -> list[str]:
    """The options, from lines such as ``global.index-url='https://…'``. Raises ValueError for what pip alone
    understands, and for a password."""
    known: dict[str, tuple[int, str]] = {}
    for line in filter(str.strip, configuration):
        name, separator, quoted = line.strip().partition("=")
        section, _, key = name.rpartition(".")
        if not separator:
            raise ValueError(f"a line without a value: {line.strip()}")
        if section not in _SECTIONS or key in _OF_PIP_ALONE:
            continue
        rank = _SECTIONS.index(section)
        if rank >= known.get(key, (0, ""))[0]:
            known[key] = rank, str(ast.literal_eval(quoted))
    options = []
    for key, (_, value) in known.items():
        if any("@" in urlsplit(each).netloc for each in value.split()):
            raise ValueError(f"pip's {key} has a user or a password, which others would see")
        if key in _LISTS:
            options += [f"{_LISTS[key]}={each}" for each in value.split()]
        elif key in _VALUES:
            options.append(f"{_VALUES[key]}={value}")
        elif key in _SWITCHES:
            options += [_SWITCHES[key]] * (value.lower() in ("1", "true", "yes", "on"))
        else:
            raise ValueError(f"uv has nothing for pip's {key}")
    return options


if __name__ == "__main__":
    try:
        sys.stdout.writelines(f"{option}\n" for option in uv_options(sys.stdin))
    except (ValueError, SyntaxError) as error:
        sys.exit(f"pip is used: {error}")
