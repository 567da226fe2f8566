"""What engines have answered and clients have not read: where it waits, and who may have how much of it."""

from gateway.unread.budget import UnreadBudget, UnreadShare
from gateway.unread.chunks import ChunkQueue

__all__ = ["ChunkQueue", "UnreadBudget", "UnreadShare"]
