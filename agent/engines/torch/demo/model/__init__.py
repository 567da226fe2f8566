"""The files of the demo model; nothing to import."""
