"""``GET /admin/logs``: the gateway's log, of all its processes, the latest lines and those that come.

``line_filter`` says which lines are wanted, ``source`` finds them in this process, ``follow`` puts together
those of all processes, ``page`` writes them.
"""
