"""Floor 4: the metadata quorum and the controller.

Knows votes, epochs, the metadata log's commit rule, broker sessions, placement and elections of partition leaders.
Does not know the network or the disk: it says what to persist, then what to send.
Rules: persist, then speak; a controller proposes records, and state changes only by replaying committed ones.
"""
