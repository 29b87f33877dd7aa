# docker build -t tsdfm .                                        for a CPU
# docker build -t tsdfm --build-arg DEVICE=cuda .                for NVIDIA GPUs; run it with --gpus all
# docker run --rm -p 127.0.0.1:8000:8000 tsdfm                   the shipped model at http://127.0.0.1:8000/
FROM python:3.12-slim

ARG DEVICE=cpu
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
# Triton compiles its launchers where passes are compiled: that takes a C compiler. PyPI's torch has CUDA with it.
RUN if [ "$DEVICE" = cuda ]; then \
        apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/* && \
        pip install --no-cache-dir --constraint constraints.txt torch; \
    else \
        pip install --no-cache-dir --constraint constraints.txt --index-url https://download.pytorch.org/whl/cpu torch; \
    fi && \
    pip install --no-cache-dir --constraint constraints.txt '.[serve]' && \
    useradd --create-home tsdfm && mkdir /cache /models && chown tsdfm /cache

USER tsdfm
WORKDIR /models
# Compiled passes stay here from one start to the next.
ENV TORCHINDUCTOR_CACHE_DIR=/cache/inductor TRITON_CACHE_DIR=/cache/triton
VOLUME /cache
EXPOSE 8000
HEALTHCHECK --start-period=120s CMD python -c "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/healthz')"
ENTRYPOINT ["tsdfm"]
CMD ["serve", "--host", "0.0.0.0"]
