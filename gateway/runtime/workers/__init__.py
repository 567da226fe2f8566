"""Several processes for one gateway on one host: a supervisor, which serves nobody, and its workers.

The supervisor holds a listening socket for each worker, and the lock on the state directory. It imports next
to nothing of the gateway, so that it stays small and has little that could fail.
"""
