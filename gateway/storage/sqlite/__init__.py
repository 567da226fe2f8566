"""SQLite under the store: the only package that knows which database it is.

``database`` opens one file and speaks to it · ``copies`` makes its backups, and puts one in its place.
"""

from gateway.storage.sqlite.copies import backup_path, copy_files, damage_of, recover, restoring_path
from gateway.storage.sqlite.database import SqliteDatabase

__all__ = ["SqliteDatabase", "backup_path", "copy_files", "damage_of", "recover", "restoring_path"]
