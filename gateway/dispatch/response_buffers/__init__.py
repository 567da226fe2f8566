"""What engines have answered and clients have not read: where it waits, and who may have how much of it."""

from gateway.dispatch.response_buffers.budget import UnreadBudget, UnreadBuffer
from gateway.dispatch.response_buffers.chunks import ChunkQueue
from gateway.dispatch.response_buffers.space import SpillSpace

__all__ = ["ChunkQueue", "SpillSpace", "UnreadBudget", "UnreadBuffer"]
