"""HTTP/1.1 towards an engine, for answers of a thousand small pieces.

A request's task is woken twice: when the answer's head has come, and when its body is over. What comes
between goes from the socket to the tunnel in one turn of the event loop::

    transport → Exchange.data_received → httptools → take(piece) → stream.send_data

``Exchange`` is one request and its answer, ``Upload`` the request's bytes, ``Pool`` the connections kept
between requests, ``Dialer`` how a new one is made.
"""
