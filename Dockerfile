# One image for each role: docker build --target gateway|worker|jobs (docs/install-containers.md).
# Requirements are pinned by hash in infra/images, which `make lock` takes out of requirements.lock.
ARG PYTHON_IMAGE=python:3.12-slim-bookworm
# With a C library no newer than that of PYTHON_IMAGE.
ARG RUST_IMAGE=rust:1.90-slim-bookworm

FROM ${RUST_IMAGE} AS wire
WORKDIR /src
COPY wire wire
RUN cargo build --quiet --release --locked --offline --manifest-path wire/Cargo.toml

FROM ${PYTHON_IMAGE} AS build
WORKDIR /src
COPY requirements-bootstrap.lock ./
RUN python -m venv /opt/uv \
    && /opt/uv/bin/pip install --no-cache-dir --require-hashes -r requirements-bootstrap.lock
ENV PATH=/opt/uv/bin:$PATH UV_LINK_MODE=copy UV_NO_CACHE=1 UV_PYTHON_DOWNLOADS=never
COPY requirements.lock pyproject.toml README.md LICENSE ./
COPY tideline tideline
COPY workflows workflows
COPY activities activities
COPY spark spark
COPY dags dags
COPY infra infra
COPY --from=wire /src/wire/target/release/libtideline_wire.so wire/target/release/
RUN uv build --quiet --wheel --build-constraint requirements.lock --require-hashes --out-dir /wheel

FROM build AS service
RUN uv venv --quiet /opt/tideline \
    && uv pip sync --quiet --python /opt/tideline/bin/python --require-hashes infra/images/service.lock \
    && uv pip install --quiet --python /opt/tideline/bin/python --no-deps /wheel/*.whl

FROM build AS with-spark
RUN uv venv --quiet /opt/tideline \
    && uv pip sync --quiet --python /opt/tideline/bin/python --require-hashes infra/images/jobs.lock \
    && uv pip install --quiet --python /opt/tideline/bin/python --no-deps /wheel/*.whl

FROM ${PYTHON_IMAGE} AS base
RUN useradd --system --uid 10001 --user-group --create-home --home-dir /var/lib/tideline tideline
ENV PATH=/opt/tideline/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /var/lib/tideline
STOPSIGNAL SIGTERM

# One beside each broker. Keep /var/lib/tideline/state over restarts: a volume of its own.
FROM base AS gateway
COPY --from=service /opt/tideline /opt/tideline
RUN install -d -m 0700 -o 10001 -g 10001 /var/lib/tideline/state
USER 10001:10001
ENV TIDELINE_GATEWAY_STATE_DIR=/var/lib/tideline/state TIDELINE_METRICS_ADDRESS=0.0.0.0:9404
EXPOSE 9092 9404
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as u; u.urlopen('http://127.0.0.1:' + os.environ['TIDELINE_METRICS_ADDRESS'].rpartition(':')[2] + '/ready', timeout=4)"]
ENTRYPOINT ["tideline", "gateway", "run"]

# Two or more for a cluster; also what applies the schema and steers (entry point `tideline`).
FROM base AS worker
COPY --from=service /opt/tideline /opt/tideline
USER 10001:10001
ENV TIDELINE_METRICS_ADDRESS=0.0.0.0:9405
EXPOSE 9405
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as u; u.urlopen('http://127.0.0.1:' + os.environ['TIDELINE_METRICS_ADDRESS'].rpartition(':')[2] + '/ready', timeout=4)"]
ENTRYPOINT ["tideline", "worker", "run"]

# A Spark driver with Tideline's jobs; ends when its job does.
FROM base AS jobs
# Debian's own security updates of the JRE are wanted, so its version is not pinned.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*
COPY --from=with-spark /opt/tideline /opt/tideline
USER 10001:10001
ENV PYSPARK_PYTHON=/opt/tideline/bin/python
HEALTHCHECK NONE
ENTRYPOINT ["python", "-m"]
CMD ["spark.coverage", "--help"]
