"""What engines have answered and clients have not read: where it waits, and who may have how much of it."""

from gateway.unread.budget import UnreadBudget, UnreadShare
from gateway.unread.buffer import UnreadBuffer
from gateway.unread.chunks import ChunkQueue
from gateway.unread.space import SpillSpace

__all__ = ["ChunkQueue", "SpillSpace", "UnreadBudget", "UnreadBuffer", "UnreadShare"]
