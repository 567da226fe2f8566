"""Who waits, and in which order those who wait are served (`docs/internals.md`, *The queue*).
Pure."""
