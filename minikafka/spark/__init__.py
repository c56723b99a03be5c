"""minikafka as a source and a sink of Spark: ``format("minikafka")``, with the options of Spark's own Kafka connector.

What this floor knows: Spark's Python Data Source API, Arrow, and brokers as seen over the wire through the synchronous
caller of ``minikafka/blocking/``. What it does not know: asyncio, the asynchronous clients, brokers from inside.

::

    options.py   every option, parsed and judged          pure
    places.py    where a query begins and ends, which     http
                 task reads what, what was lost
    decode.py    record batches to Arrow                  pyarrow
    source.py    the readers                              pyspark
    sink.py      the writers                              pyspark
    audit.py     the job: ledgers against what logs hold  pyspark
    jobs.py      the jobs flights and archive             pyspark

Read docs/spark.md first.
"""
