# The operator, the load generator and the simulated engine, in one image.
# It runs as a numeric user on a read-only root file system and writes nothing.
ARG BASE=docker.io/library/python:3.13-slim-bookworm

# The dependencies, exactly as locked. They change seldom, so they are a layer of their own.
# Compiled here, since a read-only root cannot be written to later; by hash, since copying
# changes the files' times.
FROM ${BASE} AS dependencies
COPY requirements.lock hack/image/build.lock /build/
RUN python3 -m venv /build/tools \
 && /build/tools/bin/pip install --no-cache-dir --require-hashes -r /build/build.lock \
 && python3 -m venv --without-pip /opt/specschedule \
 && /build/tools/bin/pip --python /opt/specschedule/bin/python install \
      --no-cache-dir --no-compile --only-binary :all: --require-hashes -r /build/requirements.lock \
 && /opt/specschedule/bin/python -m compileall -q --invalidation-mode unchecked-hash \
      /opt/specschedule/lib

# The project's wheel, installed to a folder that holds nothing else.
FROM dependencies AS project
COPY pyproject.toml README.md LICENSE /build/source/
COPY operator /build/source/operator
RUN /build/tools/bin/pip wheel --no-deps --no-index --no-build-isolation \
      --wheel-dir /build/dist /build/source \
 && /build/tools/bin/pip --python /opt/specschedule/bin/python install \
      --no-deps --no-index --no-compile --no-warn-script-location --root /build/installed /build/dist/*.whl \
 && /opt/specschedule/bin/python -m compileall -q --invalidation-mode unchecked-hash \
      -s /build/installed /build/installed/opt

FROM ${BASE}
LABEL org.opencontainers.image.title="specschedule" \
      org.opencontainers.image.description="Finds, proves and promotes vLLM speculative-decoding schedules by experiment." \
      org.opencontainers.image.licenses="Apache-2.0"
ENV PATH=/opt/specschedule/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 65532:65532
ENTRYPOINT ["specschedule"]
# Last, so that a change of the project alone makes one small layer.
COPY --from=dependencies /opt/specschedule /opt/specschedule
COPY --from=project /build/installed/opt/specschedule /opt/specschedule
