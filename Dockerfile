# bertjax in a container: `docker run bertjax COMMAND ...` is `bertjax COMMAND ...`.
#
#   docker build -t bertjax .                                            # CPU
#   docker build -t bertjax:cuda13 --build-arg EXTRAS=cuda13 .           # GPU (or cuda12; tpu; several: cuda13,hub)
#
# What runs write lies in /runs, the caches too: mount a folder there. Text is mounted where it pleases, read-only. The
# configs of the project are at hand as configs/...; one of your own is mounted like the text.
#
#   docker run --rm -v bertjax:/runs bertjax pretrain --config configs/quickstart.py --workdir /runs/quickstart
#
#   mkdir -p runs && docker run --rm --user "$(id -u):$(id -g)" -v "$PWD/runs:/runs" -v "$PWD/corpus:/corpus:ro" \
#       bertjax pretrain --config configs/bert.py:base --workdir /runs/mine --config.data.sources='text:/corpus/*.txt.gz'
#
#   docker run --rm --gpus all --user "$(id -u):$(id -g)" -v "$PWD/runs:/runs" -v "$PWD/corpus:/corpus:ro" \
#       bertjax:cuda13 pretrain --config configs/bert.py:base --workdir /runs/mine \
#       --config.data.sources='text:/corpus/*.txt.gz' --config.platform=gpu
#
# GPUs need the NVIDIA driver and container toolkit on the host; CUDA comes with the image. The same command resumes a
# run. `docker stop -t 120 NAME` lets it save first. Everything but /runs may be read-only: `--read-only --tmpfs /tmp`.
# A folder that is mounted at /runs must belong to the user who runs (--user, or 1000).

ARG PYTHON=3.11
FROM python:${PYTHON}-slim

ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /app

# What bertjax needs, in a layer that a change of its code leaves alone: the package is a mere version here.
ARG EXTRAS=
COPY pyproject.toml constraints.txt LICENSE ./
COPY bertjax/__init__.py bertjax/
RUN touch README.md && pip install -c constraints.txt ".${EXTRAS:+[$EXTRAS]}" && rm -rf build ./*.egg-info

COPY README.md ./
COPY bertjax bertjax
# The sources go again: what is imported is what was installed.
RUN pip install --no-deps --force-reinstall . && rm -rf build ./*.egg-info bertjax && bertjax --version
COPY configs configs

# The home is on the volume: caches of the corpus, of compiled code and of the hub outlive the container, and any
# `--user` has a home.
RUN useradd --uid 1000 --home-dir /runs --no-create-home bertjax && install -d -m 1777 -o 1000 -g 1000 /runs
ENV HOME=/runs PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 1000:1000
VOLUME /runs

ENTRYPOINT ["bertjax"]
CMD ["--help"]
