"""Floor 6: what tests do to brokers and see of them: faults on links, awaited states, the last events.

The same three stand behind ``/v1/faults``, ``/v1/wait``, ``/v1/events`` (with ``mk.testing.endpoints.enable=true``),
behind ``LocalCluster.faults``, ``.wait``, ``.events``, and in the fixtures of the pytest plugin. Rules:

1. A wait is bounded, and one that ends in vain tells the last state that it saw.
2. Nothing is decided here: states are read from a broker's metadata and its typed answers.
3. ``plugin.py`` is loaded into everybody's pytest: it imports pytest and nothing else of weight.

Reading order: states, hands, sync, plugin.
"""
