"""The lab: the articles' stories, played step by step over the real rules, and shown as the articles' tables.

Knows: `replication/`, `quorum/` and `log/` as they are, on disks in memory; a script decides when a request leaves,
arrives, is answered or lost, who dies, and what time it is. Does not know: an event loop, a socket, a clock.

Rules for this package:

1. No rule of the product is written again here. What the lab adds is the postman: it carries requests between replicas.
2. The same scenario gives the same text, always.
3. A group's rebalance is made of heartbeats, timeouts and rounds: ``rebalance.py`` plays it in the simulator, with the
   production brokers and consumers, and knows the loop that the rest of the lab does without.
4. A rule that production must not have (truncation to the high watermark) stands in ``scenario.py`` only.

Read a file in ``scenarios/`` first, then scenario.py (its form, and how it becomes steps), verbs.py (its
commands), lab_cluster.py (the postman), node.py (one broker), control.py (who elects), table.py (what is printed).
rebalance.py stands by itself.
"""
