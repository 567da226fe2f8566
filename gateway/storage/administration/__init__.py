"""What is done to a store as a whole: ``preparation`` makes one for several gateways, ``check`` looks whether
it is sound, ``transfer`` moves one to a server."""

from gateway.storage.administration.check import CheckReport, check_store
from gateway.storage.administration.preparation import PreparedStore, init_store
from gateway.storage.administration.transfer import import_files

__all__ = ["CheckReport", "PreparedStore", "check_store", "import_files", "init_store"]
