"""``/admin/events``: what the fleet, the queues and requests do, once a second (docs/admin.md).

``state`` reads this process, ``merging`` makes one state of those of several processes, ``patch`` finds what
has changed, ``feed`` makes each frame once for all pages, ``page`` writes them.
"""
