"""What may be listed, made, changed and revoked in a gateway's state, once for commands and the admin API.

`table` names every resource. A module for each says which operations there are, by which method and path they
are asked for over HTTP, which role they take, with which fields, which commands ask for them, and what does
them on a :class:`gateway.storage.Store`. It imports nothing of the store, for commands that ask another
machine. To add a resource, write its module and name it in `table`, and name its group of commands in
:data:`gateway.cli.COMMANDS`, which the root of the command line reads without importing any.
"""
