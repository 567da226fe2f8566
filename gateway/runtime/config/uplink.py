"""What can be set of the uplink: another gateway that this one serves as an agent."""

from typing import Annotated

from pydantic import AfterValidator, Field, FilePath, SecretStr, model_validator

from gateway.domain.residency import LABEL_CHARS, LABEL_NAME, LABEL_VALUE
from gateway.runtime.config.cluster import SettingsTable
from shared.protocol.limits import LABELS


def _check_label_name(text: str) -> str:
    if LABEL_NAME.fullmatch(text) is None:
        raise ValueError(f"{text[:80]!r} is no label's name")
    return text


def _check_label_value(text: str) -> str:
    if LABEL_VALUE.fullmatch(text) is None:
        raise ValueError(f"{text[:80]!r} is no label's value")
    return text


LabelName = Annotated[str, Field(max_length=LABEL_CHARS), AfterValidator(_check_label_name)]
LabelValue = Annotated[str, Field(max_length=LABEL_CHARS), AfterValidator(_check_label_value)]


class UplinkTable(SettingsTable):
    """Another gateway that this one serves as an agent."""

    url: Annotated[str | None, Field(min_length=1, max_length=2000)] = None
    """That gateway: https://HOST[:PORT]; http:// on loopback only."""
    join: Annotated[SecretStr | None, Field(max_length=2000)] = None
    """A join token made there; needed the first time only."""
    name: Annotated[str | None, Field(pattern="^[a-z0-9][a-z0-9._-]{0,62}$")] = None
    """What this gateway is called there; the default is the host's name."""
    labels: Annotated[dict[LabelName, LabelValue], Field(max_length=LABELS)] = {}
    """Labels of agents that have none of that name, where that gateway says where a request may run."""
    ca_file: FilePath | None = None
    """Certificates to trust for its TLS, in place of the system's."""

    @model_validator(mode="after")
    def _fits_together(self) -> "UplinkTable":
        if self.url is None and (self.join is not None or self.name is not None or self.ca_file is not None):
            raise ValueError("uplink.join, uplink.name and uplink.ca_file need uplink.url (--uplink)")
        return self
