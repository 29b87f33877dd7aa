# docker build -t tsdfm .                                        runs on a CPU; of a third of the size with
#     --build-arg TORCH_INDEX=URL                                the address of PyTorch's own index of CPU builds
# docker build -t tsdfm --build-arg DEVICE=cuda .                for NVIDIA GPUs; run it with --gpus all
# docker run --rm -p 127.0.0.1:8000:8000 tsdfm                   the shipped model at http://127.0.0.1:8000/
FROM python:3.12-slim

ARG DEVICE=cpu
ARG TORCH_INDEX=
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
# Triton compiles its launchers where passes are compiled: that takes a C compiler, whichever the image has.
# hadolint ignore=DL3008
RUN if [ "$DEVICE" = cuda ]; then \
        apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*; \
    fi && \
    pip install --no-cache-dir --constraint constraints.txt ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch && \
    pip install --no-cache-dir --constraint constraints.txt '.[serve]' && \
    useradd --create-home --uid 1000 tsdfm && mkdir /cache /models && chown tsdfm /cache

USER 1000
WORKDIR /models
# Compiled passes stay here from one start to the next.
ENV TORCHINDUCTOR_CACHE_DIR=/cache/inductor TRITON_CACHE_DIR=/cache/triton
VOLUME /cache
EXPOSE 8000
HEALTHCHECK --start-period=120s CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/healthz')"]
ENTRYPOINT ["tsdfm"]
CMD ["serve", "--host", "0.0.0.0"]
