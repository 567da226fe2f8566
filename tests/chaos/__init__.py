"""The product under every fault it claims to hide: ``tests/run chaos`` (docs/testing.md)."""
