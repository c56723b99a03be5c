"""Floor 5: producer, consumer and admin client, with aiokafka's names.

Knows the cluster as metadata shows it, batches, partitioners, retries by ``retriable`` within the delivery timeout.
Does not know the broker's code: client and broker never import each other and meet on the wire only.
Rules: as for the broker's drivers; an outcome is acknowledged, failed or unknown, never guessed.
"""
