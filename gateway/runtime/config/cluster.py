"""Settings of what several processes of a gateway share: the store, and how they know each other."""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gateway.domain.store_address import STALE_S, StoreAddress
from shared.protocol.peers import PROCESS_PATTERN


class SettingsTable(BaseModel):
    """A table of the settings: frozen, without keys that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class StoreTable(SettingsTable):
    """A server for the durable state, which several gateways then share; else it is files."""

    url: Annotated[str | None, Field(repr=False)] = None
    """postgresql://USER@HOST:PORT/DATABASE; the default is files in the directory of the state."""
    password_file: Path | None = None
    """Holds the password; PGPASSWORD does as well."""
    stale_s: Annotated[float, Field(ge=0, le=86_400)] = STALE_S
    """Keys and agents are served from memory for so long while the server is away; 0: not at all."""

    @model_validator(mode="after")
    def _is_address(self) -> "StoreTable":
        if self.url is not None:
            StoreAddress(self.url)  # its ValueError says what is wrong, and shows no password
        elif self.password_file is not None:
            raise ValueError("store.password_file needs store.url")
        return self


class ClusterTable(SettingsTable):
    """The processes of a gateway that has several, which have one identity."""

    key: Path | None = None
    """The file with the key that wraps the gateway's own key in the store; the default is one that is made in
    the state."""
    process: Annotated[str, Field(pattern=PROCESS_PATTERN)] | None = None
    """What this one is called; None: it needs no name, or makes itself one and keeps it in its state."""
    url: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """Where agents dial this one, if that is not below the address that they were given."""
    address: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """Where the other processes ask this one for what operators want to know; None: at ``url``."""
    ca_file: Path | None = None
    """Certificates to trust where others are asked, in place of the system's."""
    peers: Annotated[list[Annotated[str, Field(max_length=300)]], Field(max_length=1000)] = []
    """Each ``NAME`` or ``NAME=URL``, where agents dial it. Those with one store find each other."""
