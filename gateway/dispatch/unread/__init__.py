"""What engines have answered and clients have not read: where it waits, and who may have how much of it."""

from gateway.dispatch.unread.budget import UnreadBudget, UnreadBuffer
from gateway.dispatch.unread.chunks import ChunkQueue
from gateway.dispatch.unread.space import SpillSpace

__all__ = ["ChunkQueue", "SpillSpace", "UnreadBudget", "UnreadBuffer"]
