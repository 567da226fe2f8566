"""What ``/openapi.json`` says that may be answered."""

from gateway.api.openapi import document


def documented_statuses() -> set[int]:
    """The statuses of all operations."""
    return {
        int(status)
        for path in document()["paths"].values()
        for operation in path.values()
        if isinstance(operation, dict)
        for status in operation["responses"]
        if status.isdigit()
    }
