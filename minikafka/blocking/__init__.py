"""Brokers for synchronous callers: Spark's tasks and ``minikafka audit`` use neither threads nor asyncio.

::

    brokers.py   a typed request to one broker over http.client; metadata, offsets, fetch and produce with retries
    reading.py   one range of offsets of one partition, from its start to its end
"""
