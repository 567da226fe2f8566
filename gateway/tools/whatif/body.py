"""What the options of ``trunkline whatif`` ask for."""

import re
from typing import Any

import typer
from pydantic import ValidationError

from gateway.api.admin.whatif_body import WhatIfBody
from gateway.tools.simulate.inputs import mistake_in
from gateway.tools.whatif.options import WhatIfOptions

Json = dict[str, Any]

_ADDED = re.compile(r"\s*(?:(\d{1,4})\s*\*)?\s*([^,*@=]+?)\s*(?:@\s*([^,]+?)\s*)?((?:,\s*\w+=[^,]*)*)\s*")
_MEMBERS = ("slots", "tokens_per_s", "prompt_tokens_per_s", "gpu_hour")
_SLOTS = re.compile(r"(.+)=(\d{1,6})")


def body_of(options: WhatIfOptions) -> WhatIfBody:
    """Raises typer.BadParameter."""
    given = {
        "minutes": options.minutes,
        "policy": options.policy,
        "add": [_added(text) for text in options.add or ()],
        "remove": [_removed(text) for text in options.remove or ()],
        "slots": dict(_slots(text) for text in options.slots or ()),
        "scale": options.scale,
        "max_requests": options.max_requests,
        "max_wait_s": options.max_wait,
        "gpu_hour": options.gpu_hour,
        "good_first_s": options.good_first,
        "good_each_s": options.good_each,
        "seed": options.seed,
    }
    try:
        return WhatIfBody.model_validate({name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        option = option_of(str(error.errors()[0]["loc"][0]))
        raise typer.BadParameter(mistake_in(error), param_hint=option) from None


def option_of(member: str) -> str:
    """The option of a member of the body."""
    names = {"max_wait_s": "max-wait", "good_first_s": "good-first", "good_each_s": "good-each"}
    return member if member.startswith("--") else f"--{names.get(member, member.replace('_', '-'))}"


def _group(text: str, option: str) -> tuple[Json, str]:
    match = _ADDED.fullmatch(text)
    if match is None:
        raise typer.BadParameter(
            f"{text!r} is not N*CLASS or N*CLASS@MODEL, as 2*l4@llama-3.1-8b", param_hint=option
        )
    found: Json = {"count": int(match[1] or 1), "device": match[2]}
    return (found if match[3] is None else {**found, "model": match[3]}), match[4]


def _added(text: str) -> Json:
    found, members = _group(text, "--add")
    if found["device"] == "same":
        del found["device"]
    for each in filter(None, (part.strip() for part in members.split(","))):
        name, _, value = each.partition("=")
        if name not in _MEMBERS:
            raise typer.BadParameter(
                f"no member is called {name!r}; there are: {', '.join(_MEMBERS)}", param_hint="--add"
            )
        try:
            found[name] = int(value) if name == "slots" else float(value)
        except ValueError:
            raise typer.BadParameter(f"{name} is a number, not {value!r}", param_hint="--add") from None
    return found


def _removed(text: str) -> Json:
    found, members = _group(text, "--remove")
    if members:
        raise typer.BadParameter(f"{text!r} has members that only --add takes", param_hint="--remove")
    if found["device"] == "any":
        del found["device"]
    return found


def _slots(text: str) -> tuple[str, int]:
    match = _SLOTS.fullmatch(text)
    if match is None:
        raise typer.BadParameter(f"{text!r} is not MODEL=N", param_hint="--slots")
    return match[1], int(match[2])
