"""What can be set of files, jobs and webhooks."""

import ipaddress
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from gateway.domain.files import MIB, MOST_FILE_BYTES, OBJECT_SCHEMES
from gateway.domain.webhook_addresses import WebhookRules, read_webhook_url
from gateway.runtime.config.cluster import SettingsTable
from gateway.runtime.config.networks import Networks
from gateway.runtime.config.queues import QueueTable


class JobsTable(SettingsTable):
    """Files and jobs of clients."""

    objects: Annotated[str | None, Field(max_length=2000)] = None
    """Where their bytes are: s3://BUCKET/PREFIX, gs://…, az://…, file:///PATH; the default is a directory
    in that of the state, which only the gateways of its host can read."""
    file_bytes: Annotated[int, Field(ge=1024, le=4096 * MIB)] = MOST_FILE_BYTES
    """Longest file."""
    tenant_bytes: Annotated[int, Field(ge=1024)] = 100 * 1024 * MIB
    """Of all files of a tenant together."""
    webhook: Annotated[str | None, Field(max_length=2000)] = None
    """Where the ends of jobs are told that name no webhook of their own; it may be anywhere."""
    webhook_networks: Networks = []
    """Where clients' webhooks may be beside the Internet: networks such as 10.1.0.0/16."""
    webhook_ports: Annotated[list[Annotated[int, Field(ge=1, le=65_535)]], Field(max_length=100)] = []
    """The only ports of clients' webhooks; empty: 80, 443 and those from 1024 on."""
    webhook_ca_file: Path | None = None
    """Certificates to trust of receivers of webhooks, in place of the system's."""
    queued: Annotated[int, Field(ge=1, le=10_000_000)] = 100_000
    """Jobs of a tenant that wait at once."""
    result_bytes: Annotated[int, Field(ge=1024)] = 100 * 1024 * MIB
    """Of all results of a tenant's jobs together; beyond it, new jobs are refused."""
    run: bool = True
    """This process runs jobs. One that does not still takes and shows them."""
    at_once: Annotated[int, Field(ge=1, le=100_000)] = 1000
    """Jobs that this process runs at once at the most, where the fleet has room for them."""
    tenant_at_once: Annotated[int | None, Field(ge=1)] = None
    """Jobs of a tenant that all processes run at once; unset: as many as the fleet has room for."""
    attempts: Annotated[int, Field(ge=1, le=100)] = 4
    """So often a job is given to engines that fail on it."""
    retry_s: Annotated[float, Field(ge=0.0, le=3600.0)] = 2.0
    """Longest wait before the second attempt; it doubles with each, and each is a random part of it."""
    retry_most_s: Annotated[float, Field(ge=0.0, le=86_400.0)] = 600.0
    """Longest wait before any attempt."""
    kept_days: Annotated[float, Field(gt=0.0, le=3650.0)] = 30.0
    """Jobs that have ended are kept for so long, with their results."""
    look_s: Annotated[float, Field(ge=0.05, le=60.0)] = 1.0
    """Between two looks for jobs and batches that other processes took or left; twice as long while there
    are none."""
    lease_s: Annotated[float, Field(ge=1.0, le=600.0)] = 30.0
    """A job whose process has said nothing for so long goes to another one."""

    queues: Annotated[list[QueueTable], Field(max_length=100)] = []
    """Queues whose messages are jobs."""

    @field_validator("queues")
    @classmethod
    def _have_names_of_their_own(cls, value: list[QueueTable]) -> list[QueueTable]:
        if len({each.name for each in value}) != len(value):
            raise ValueError("two of them have one name")
        return value

    @field_validator("objects")
    @classmethod
    def _is_address(cls, value: str | None) -> str | None:
        if value is not None:
            parts = urlsplit(value)
            if parts.scheme not in OBJECT_SCHEMES:
                raise ValueError(f"write SCHEME://PLACE with one of the schemes {', '.join(OBJECT_SCHEMES)}")
            if parts.username or parts.password:
                raise ValueError("credentials belong in the environment, not in the address")
        return value

    @model_validator(mode="after")
    def _webhook_can_be_sent_to(self) -> "JobsTable":
        if self.webhook is not None:
            read_webhook_url(self.webhook, self.webhook_rules)  # its ValueError says what is wrong
        return self

    @property
    def webhook_rules(self) -> WebhookRules:
        """What is checked of webhooks."""
        networks = tuple(ipaddress.ip_network(each) for each in self.webhook_networks)
        return WebhookRules(networks, frozenset(self.webhook_ports), self.webhook)
