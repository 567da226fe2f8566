"""The type of settings that list networks."""

import ipaddress
from typing import Annotated

from pydantic import AfterValidator, Field


def _check_networks(value: list[str]) -> list[str]:
    for network in value:
        ipaddress.ip_network(network)  # its ValueError says what is wrong
    return value


Networks = Annotated[list[str], Field(max_length=1000), AfterValidator(_check_networks)]
"""At most 1,000 networks or addresses, such as 10.1.0.0/16 and ::1."""
