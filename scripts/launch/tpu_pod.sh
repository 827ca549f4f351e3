#!/usr/bin/env bash
# Trains on all hosts of a Cloud TPU slice: the same command on every one of them, which jax then brings together.
#
#   scripts/launch/tpu_pod.sh [--dry-run] --name SLICE --zone ZONE [--project ID] [--directory DIR] -- \
#       --config bert:base --workdir /mnt/shared/runs/bert --config.data.cache_dir=/mnt/shared/cache
#
# What stands behind `--` goes to `bertjax pretrain` with --config.platform=tpu. DIR (~/bertjax) is the checkout on the
# hosts, its environment in .venv; work directory, cache and text must lie on a disk that all hosts have mounted, or in
# an object store (gs://).
# The command is started again while a host was lost (exit status 75) or a host was asked to stop.
set -euo pipefail

usage() {
  sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p;}' "$0"
}

dry_run=false
name='' zone='' project='' directory='bertjax'
while (($#)); do
  case "$1" in
    --dry-run) dry_run=true ;;
    --name | --zone | --project | --directory)
      printf -v "${1#--}" %s "${2:?a value is missing behind $1}"
      shift
      ;;
    --help)
      usage
      exit
      ;;
    --)
      shift
      break
      ;;
    *)
      echo "unknown option $1 (what is for bertjax stands behind --)" >&2
      exit 2
      ;;
  esac
  shift
done
if [[ -z "$name" || -z "$zone" ]] || ! (($#)); then
  usage >&2
  exit 2
fi

printf -v arguments '%q ' "$@" --config.platform=tpu
# One shell on every host; ssh hands on the exit status of the first host that fails.
remote="cd $(printf %q "$directory") && exec .venv/bin/bertjax pretrain $arguments"
command=(gcloud compute tpus tpu-vm ssh "$name" "--zone=$zone" --worker=all "--command=$remote")
if [[ -n "$project" ]]; then
  command+=("--project=$project")
fi
if $dry_run; then
  printf '%q ' "${command[@]}"
  echo
  exit
fi
for ((start = 0; start < ${BERTJAX_MAX_RESTARTS:-50}; start++)); do
  status=0
  "${command[@]}" || status=$?
  case "$status" in
    75 | 134 | 137 | 143) echo "exit status $status: starting again" >&2 ;;
    *) exit "$status" ;;
  esac
  sleep 10
done
exit "$status"
