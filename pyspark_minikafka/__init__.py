"""Where Spark finds ``format("minikafka")``: it imports every top-level package whose name begins with ``pyspark_``.

Rules for this file: thin, because each look-up of any format imports it.
"""

from __future__ import annotations

from minikafka.spark.source import MiniKafkaSource as DefaultSource

__all__ = ["DefaultSource"]
