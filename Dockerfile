# One broker. It listens beyond its own loopback, so it starts only when told that the network is yours:
#   docker build -t minikafka . && docker run --rm -e MK_INSECURE=true -p 127.0.0.1:9092:9092 \
#     -e KAFKA_ADVERTISED_LISTENERS=PLAINTEXT://localhost:9092 minikafka
# Settings come from KAFKA_... and MK_... variables (docs/cli.md). It runs as a user without rights and writes to its
# volume only: --read-only --cap-drop ALL --security-opt no-new-privileges are fine. Three brokers: docker-compose.yml.
FROM python:3.11-slim AS build

ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
# Without a pip of its own: nothing is installed at run time.
RUN python -m venv --without-pip /opt/venv
WORKDIR /src
# `make image` names the wheel that `make dist` has checked. Without one the image is built from these sources.
ARG WHEEL=pyproject.toml
# Extras of the package: EXTRAS=[certs] for `minikafka certs` in a container.
ARG EXTRAS=
COPY pyproject.toml README.md LICENSE ${WHEEL} ./
COPY minikafka ./minikafka
COPY pyspark_minikafka ./pyspark_minikafka
COPY tools/hatch_build.py tools/compile_rules.py ./tools/
RUN python -m pip --python /opt/venv/bin/python install "$(ls ./*.whl 2>/dev/null || echo .)${EXTRAS}"

FROM python:3.11-slim

LABEL org.opencontainers.image.title="minikafka" \
      org.opencontainers.image.description="A broker that Kafka clients connect to, with real replication, in Python" \
      org.opencontainers.image.licenses="Apache-2.0"

RUN useradd --system --uid 10001 --home-dir /var/lib/minikafka --shell /usr/sbin/nologin minikafka \
    && install -d -o minikafka -g minikafka /var/lib/minikafka
COPY --from=build /opt/venv /opt/venv
COPY configs/broker.properties /etc/minikafka/broker.properties

# malloc keeps large buffers instead of returning them to the kernel: page faults of 1 MiB batches would dominate.
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    MALLOC_MMAP_THRESHOLD_=1073741824 \
    MALLOC_TRIM_THRESHOLD_=1073741824 \
    MALLOC_TOP_PAD_=16777216 \
    KAFKA_LISTENERS=PLAINTEXT://0.0.0.0:9092 \
    KAFKA_LOG_DIRS=/var/lib/minikafka

USER minikafka
VOLUME /var/lib/minikafka
EXPOSE 9092
STOPSIGNAL SIGTERM
# Ready: registered with the controller, metadata caught up, logs recovered. A 503 says what is missing.
HEALTHCHECK --interval=5s --timeout=3s --start-period=60s --retries=3 \
    CMD ["python", "-IS", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9092/readyz', timeout=2)"]
CMD ["minikafka", "serve", "/etc/minikafka/broker.properties"]
