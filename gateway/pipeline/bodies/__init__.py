"""What a JSON body says, read beside the event loop where that takes long.

``facts`` holds all that the gateway must know of a body. ``reader`` has long bodies read by ``child``, a
process of its own: parsing holds Python's lock for as long as it takes, so a thread would stop the event loop
just the same. The package itself imports neither, so that the child starts quickly.
"""
