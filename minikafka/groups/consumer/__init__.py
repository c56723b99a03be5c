"""Floor 4: groups of the protocol of KIP-848, in which the coordinator assigns and each member only heartbeats.

``records.py`` has their records in ``__consumer_offsets``, ``group.py`` the state that these records make up,
``assignors.py`` the target assignment, ``heartbeat.py`` what one member may own next and the response to one
heartbeat, and ``groups.py`` all groups of one coordinator: their writes, timers and order of requests.
"""
