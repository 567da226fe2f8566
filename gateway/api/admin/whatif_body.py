"""What a what-if changes: the body of ``POST /admin/whatif`` (docs/admin.md)."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

MOST_CHANGES = 32
"""Entries of ``add`` and of ``remove``."""

MOST_DEPLOYMENTS = 1000
"""Added by one entry."""

MOST_SLOTS = 4096
MOST_MINUTES = 24 * 60

GOOD_FIRST_S = 2.0
GOOD_EACH_S = 0.1
"""The service level where none is said: seconds to the first token, and for each further one."""

_Device = Annotated[str, Field(max_length=256)]
"""Empty: agents name none."""

_Name = Annotated[str, Field(min_length=1, max_length=256)]
_Count = Annotated[int, Field(ge=1, le=MOST_DEPLOYMENTS)]
_Slots = Annotated[int, Field(ge=1, le=MOST_SLOTS)]
_Pace = Annotated[float, Field(gt=0, le=1e7, allow_inf_nan=False)]
_Money = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
_Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class AddedDeployments(_Strict):
    """More deployments of a model on one class of device."""

    device: _Device | None = None
    """A class such as ``l4``, or what an agent says its GPUs are; None: what most of the model's have."""
    count: _Count = 1
    model: _Name | None = None
    """May be left out where only one model is served."""
    slots: _Slots | None = None
    """Of each; None: as deployments of that class have, else by the memory of both classes."""
    tokens_per_s: _Pace | None = None
    """What one request alone is written at; None: as measured, or scaled from what was."""
    prompt_tokens_per_s: _Pace | None = None
    """What a prompt is read at."""
    gpu_hour: _Money | None = None
    """What each costs an hour."""


class RemovedDeployments(_Strict):
    """Fewer deployments of a model."""

    count: _Count = 1
    model: _Name | None = None
    device: _Device | None = None
    """Only of this class."""


class WhatIfBody(_Strict):
    """What is to be different, and how much of the past is replayed."""

    minutes: Annotated[float, Field(gt=0, le=MOST_MINUTES, allow_inf_nan=False)] = 60.0
    policy: _Name | None = None
    """Of every model; None: as set."""
    add: Annotated[list[AddedDeployments], Field(max_length=MOST_CHANGES)] = []
    remove: Annotated[list[RemovedDeployments], Field(max_length=MOST_CHANGES)] = []
    slots: Annotated[dict[_Name, _Slots], Field(max_length=MOST_CHANGES)] = {}
    """Of each deployment that is there, by model."""
    scale: Annotated[float, Field(ge=0.01, le=100, allow_inf_nan=False)] = 1.0
    """Requests come so many times as fast."""
    max_requests: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Requests that may wait for one model."""
    max_wait_s: _Seconds | None = None
    gpu_hour: _Money | None = None
    """What every deployment costs an hour of which no price is known."""
    good_first_s: _Seconds = GOOD_FIRST_S
    good_each_s: _Seconds = GOOD_EACH_S
    seed: Annotated[int, Field(ge=0, le=2**31)] = 0
