"""Jobs while their processes are killed: batches of many lines, and queues of many messages."""
