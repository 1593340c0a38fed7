# rung in a container. The default base has no CUDA packages; kernels run on the CPU emulator.
# With a GPU: docker build --build-arg BASE=nvidia/cuda:13.0.1-base-ubuntu24.04 --build-arg TORCH_INDEX=https://pypi.org/simple -t rung .
#             docker run --gpus all rung bench layernorm
ARG BASE=ubuntu:24.04
FROM ${BASE}
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
# The distribution's own versions are wanted.
# hadolint ignore=DL3008
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends g++ python3 python3-venv \
 && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/rung
ENV PATH=/opt/rung/bin:$PATH
COPY constraints.txt /tmp/constraints.txt
RUN pip install --no-cache-dir -c /tmp/constraints.txt --extra-index-url ${TORCH_INDEX} torch
COPY . /src
RUN pip install --no-cache-dir -c /tmp/constraints.txt /src/gpuless '/src[serve,triton]' && rm -rf /src
RUN useradd --create-home --uid 1001 rung
USER 1001
WORKDIR /home/rung
ENTRYPOINT ["rung"]
CMD ["doctor"]
