"""Floor 4: consumer groups as rules. Membership, generations, assignments and committed offsets (S29 to S36).

``coordinator.py`` is what a broker drives, one for each partition of ``__consumer_offsets`` that it leads;
``rebalance.py`` holds the classic protocol's steps on one ``group.py``, which has the answers to members too;
``offsets.py`` what was committed; ``records.py`` the bytes of the topic; ``assignors.py`` runs in the client that
leads a group.
"""
