"""HTTP/1.1 towards an engine, for answers of a thousand small pieces.

No task belongs to a request whose body is there and that leaves over a kept connection. What comes goes from
the socket to the tunnel in one turn of the event loop::

    transport → EngineConnection.data_received → httptools → receiver.on_body(piece) → stream.send_data

``EngineConnection`` has one answer after another, ``EngineCall`` is one request, ``upload`` has its bytes,
``connections`` how connections are made and kept between requests.
"""
