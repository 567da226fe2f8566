"""Several processes for one gateway on one host: a supervisor, which serves nobody, and its workers.

The supervisor holds a listening socket for each worker, and the lock on the state directory. It does next to
nothing of what a gateway does, so that it has little that could fail. On Linux it imports what its workers
begin with, because they are forks of it.
"""
