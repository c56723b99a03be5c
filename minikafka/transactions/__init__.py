"""Floor 4, beside ``groups/``: the transaction coordinator's rules (KIP-98, KIP-360, KIP-890).

``records.py`` holds the bytes of ``__transaction_state``, ``transaction.py`` the state machine of one transactional id,
``markers.py`` which partitions still need a marker, and ``coordinator.py`` all transactional ids of one partition.
"""
