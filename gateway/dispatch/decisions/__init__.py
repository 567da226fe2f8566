"""Decision records: why a request waited, why it went where it went, and what became of it.

``decision`` notes what is known when a request is placed, ``waits`` why requests wait; ``records`` keeps what
is known at a request's end; ``description`` and ``words`` make it readable when somebody asks.
"""
