# An image that serves one model on a CPU. docs/install.md has the commands.

FROM python:3.12-slim AS build
WORKDIR /src
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim
# g++ compiles the native CPU passes for the processor at hand when a model is first loaded.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
# The extra index has builds of torch without CUDA, which are ten times smaller.
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    --mount=type=bind,source=constraints.txt,target=/constraints.txt \
    pip install --no-cache-dir --constraint /constraints.txt \
        --extra-index-url https://download.pytorch.org/whl/cpu "$(ls /wheels/*.whl)[server]"

# The volume keeps fetched models, compiled passes and measured costs when a container is replaced.
RUN useradd --create-home --uid 1000 wager && install --directory --owner 1000 /cache
USER 1000
WORKDIR /srv
ENV XDG_CACHE_HOME=/cache HF_HOME=/cache/huggingface WAGER_HOST=0.0.0.0 WAGER_PORT=8000
VOLUME /cache
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=120s CMD ["python", "-c", \
    "import os, urllib.request as u; u.urlopen('http://127.0.0.1:' + os.environ['WAGER_PORT'] + '/health', timeout=4)"]
# The model and further flags are the arguments of `docker run`.
ENTRYPOINT ["wager", "serve"]
