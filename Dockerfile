# One broker. It listens beyond its own loopback, so it starts only when told that the network is yours:
#   docker run --rm -e MK_INSECURE=true -e KAFKA_ADVERTISED_LISTENERS=PLAINTEXT://localhost:9092 -p 127.0.0.1:9092:9092 minikafka
FROM python:3.11-slim AS build

ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/venv
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY minikafka ./minikafka
RUN /opt/venv/bin/pip install .

FROM python:3.11-slim

RUN useradd --system --uid 10001 --home-dir /var/lib/minikafka minikafka \
    && install -d -o minikafka -g minikafka /var/lib/minikafka /etc/minikafka
COPY --from=build /opt/venv /opt/venv
COPY configs/broker.properties /etc/minikafka/broker.properties

# malloc keeps large buffers instead of returning them to the kernel: page faults of 1 MiB batches would dominate.
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    MALLOC_MMAP_THRESHOLD_=1073741824 \
    MALLOC_TRIM_THRESHOLD_=1073741824 \
    MALLOC_TOP_PAD_=16777216 \
    KAFKA_LISTENERS=PLAINTEXT://0.0.0.0:9092 \
    KAFKA_LOG_DIRS=/var/lib/minikafka

USER minikafka
VOLUME /var/lib/minikafka
EXPOSE 9092
STOPSIGNAL SIGTERM
# Ready: registered with the controller, metadata caught up, logs recovered.
HEALTHCHECK --interval=2s --timeout=3s --start-period=60s --retries=15 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9092/readyz', timeout=2)"]
CMD ["minikafka", "serve", "/etc/minikafka/broker.properties"]
