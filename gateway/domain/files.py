"""Files that clients keep at the gateway, as OpenAI's Files API has them. Plain data."""

from dataclasses import dataclass
from enum import StrEnum

MIB = 1024 * 1024
MOST_FILE_BYTES = 512 * MIB
"""As OpenAI's API takes at the most."""

BATCH_KEPT_S = 30 * 86_400.0
"""Files of batches are kept for so long unless their upload says otherwise; others until they are deleted."""
LEAST_KEPT_S, MOST_KEPT_S = 3600, 2_592_000
"""What ``expires_after.seconds`` may be."""

FILENAME_CHARS = 255

OBJECT_SCHEMES = ("file", "s3", "s3a", "gs", "az", "abfs", "abfss", "https")
"""Of addresses of object stores."""


class FilePurpose(StrEnum):
    """What a file is for. The first ones may be uploaded; the others are what the gateway makes."""

    ASSISTANTS = "assistants"
    BATCH = "batch"
    FINE_TUNE = "fine-tune"
    VISION = "vision"
    USER_DATA = "user_data"
    EVALS = "evals"
    BATCH_OUTPUT = "batch_output"


UPLOADED = frozenset(FilePurpose) - {FilePurpose.BATCH_OUTPUT}


@dataclass(frozen=True, slots=True)
class NewFile:
    """What is uploaded. Times are seconds since 1970."""

    id: str
    tenant: str
    key_id: str
    filename: str
    purpose: FilePurpose
    created_s: float
    expires_s: float | None = None

    @property
    def object_name(self) -> str:
        """Where its bytes are in the object store."""
        return f"files/{self.id}"


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A file that is all there."""

    number: int
    """In the order of upload."""
    new: NewFile
    size_bytes: int
    sha256: str

    @property
    def id(self) -> str:
        return self.new.id
