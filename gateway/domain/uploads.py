"""Files that come in parts, as OpenAI's Uploads API has them. Plain data."""

from dataclasses import dataclass
from enum import StrEnum

from gateway.domain.files import MIB, FilePurpose

UPLOAD_KEPT_S = 3600.0
"""An upload and its parts are there for so long."""
MOST_PART_BYTES = 64 * MIB
MOST_PARTS = 10_000
MIME_CHARS = 255


class UploadState(StrEnum):
    PENDING = "pending"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class NewUpload:
    """What is to come. Times are seconds since 1970."""

    id: str
    tenant: str
    key_id: str
    filename: str
    mime_type: str
    purpose: FilePurpose
    size_bytes: int
    """All parts together."""
    created_s: float
    expires_s: float
    file_kept_s: float | None = None
    """How long its file is kept; None: until it is deleted."""

    def part_object(self, part_id: str) -> str:
        """Where the bytes of a part are in the object store."""
        return f"{objects_of(self.id)}/{part_id}"


@dataclass(frozen=True, slots=True)
class UploadRecord:
    """An upload as it is."""

    new: NewUpload
    state: UploadState
    file_id: str | None = None
    """The file that it became."""


@dataclass(frozen=True, slots=True)
class UploadPart:
    """A part that is all there."""

    id: str
    upload_id: str
    size_bytes: int
    created_s: float


def objects_of(upload_id: str) -> str:
    """The directory of the objects of an upload's parts."""
    return f"uploads/{upload_id}"
