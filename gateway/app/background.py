"""The background writer, with what it notes down and where."""

from gateway.fleet.registry import Registry
from gateway.quota.usage import UsageLedger
from gateway.runtime.background_writer import BackgroundWriter, BackgroundWriterSettings
from gateway.storage import Store


def make_background_writer(
    store: Store, registry: Registry, ledger: UsageLedger, owner: bool
) -> BackgroundWriter:
    """``owner``: this process backs the store up, where that is done."""
    kept = BackgroundWriterSettings(registry.settings.max_models)
    backup = store.backup if owner and store.makes_backups else None
    noted, used = store.models.note, store.usage.add
    return BackgroundWriter(registry.index, noted, ledger, used, kept, backup=backup)
