# bertjax in a container: `docker run bertjax COMMAND ...` is `bertjax COMMAND ...`.
#
#   docker build -t bertjax .                                            # CPU
#   docker build -t bertjax:cuda13 --build-arg EXTRAS=cuda13 .           # GPU (or cuda12; tpu; several: cuda13,wandb)
#
# Everything is written to /runs, caches included: mount a volume or a directory there. Mount text anywhere, read-only.
# `docker run bertjax configs` lists the configs that bertjax ships; mount a config of your own like the text.
#
#   docker run --rm -v bertjax:/runs bertjax pretrain --config quickstart --workdir /runs/quickstart
#
#   mkdir -p runs && docker run --rm --user "$(id -u):$(id -g)" -v "$PWD/runs:/runs" -v "$PWD/corpus:/corpus:ro" \
#       bertjax pretrain --config bert:base --workdir /runs/mine --config.data.sources='text:/corpus/*.txt.gz'
#
#   docker run --rm --gpus all --user "$(id -u):$(id -g)" -v "$PWD/runs:/runs" -v "$PWD/corpus:/corpus:ro" \
#       bertjax:cuda13 pretrain --config bert:base --workdir /runs/mine \
#       --config.data.sources='text:/corpus/*.txt.gz' --config.platform=gpu
#
# GPUs need the NVIDIA driver and container toolkit on the host; CUDA is part of the image. The same command resumes a
# run. `docker stop -t 120 NAME` gives it time to save first. The rest of the file system may be read-only:
# `--read-only --tmpfs /tmp`. A directory mounted at /runs must belong to the user of the container (--user, or 1000).

ARG PYTHON=3.11
FROM python:${PYTHON}-slim

ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /app

# Dependencies are a layer of their own, which changes of the code do not invalidate: bertjax is a mere version here.
ARG EXTRAS=
COPY pyproject.toml constraints.txt LICENSE ./
COPY bertjax/__init__.py bertjax/
RUN mkdir configs && touch README.md && pip install -c constraints.txt ".${EXTRAS:+[$EXTRAS]}"

COPY README.md ./
COPY bertjax bertjax
COPY configs configs
# Without the sources what is imported is what was installed.
RUN pip install --no-deps --force-reinstall . && rm -rf bertjax configs && bertjax --version

# HOME is on the volume: caches of corpora, compiled programs and the Hugging Face hub outlive the container, and every
# `--user` has a home directory.
RUN useradd --uid 1000 --home-dir /runs --no-create-home bertjax && install -d -m 1777 -o 1000 -g 1000 /runs
ENV HOME=/runs PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 1000:1000
VOLUME /runs

ENTRYPOINT ["bertjax"]
CMD ["--help"]
