"""Floor 4: the history checker, which is pure.

Knows the JSON-lines history of client operations and of replica logs, and what no client may ever see: lost,
duplicated, reordered, inconsistent or diverged records.
Does not know how the history came about: simulator, processes and demo all end here.
Rules: linear time, no clock, no disk; each finding carries the smallest evidence.
"""
