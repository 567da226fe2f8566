"""What may be listed, made, changed and revoked in a gateway's state, once for commands and the admin API.

`table` says which operations there are, by which method and path they are asked for over HTTP, and which role
they take; it imports nothing of the store, for commands that ask another machine. `run` does them on a
:class:`gateway.storage.Store`.
"""
