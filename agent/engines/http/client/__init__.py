"""HTTP/1.1 towards an engine, for answers of a thousand small pieces.

A request's task is woken twice: when the answer's head has come, and when its body is over. What comes
between goes from the socket to the tunnel in one turn of the event loop::

    transport → EngineExchange.data_received → httptools → take(piece) → stream.send_data

``EngineExchange`` is one request and its answer, ``upload`` has the request's bytes, ``connections`` how they
are made and kept between requests.
"""
