#!/usr/bin/env bash
# Trains on a SLURM cluster, one process a GPU, and goes on by itself after a preemption, the time limit or a lost node.
#
#   scripts/launch/slurm.sh [--dry-run] [--nodes N] [--gpus N] [--cpus N] [--time HH:MM:SS] [--partition NAME] -- \
#       --config bert:base --workdir /shared/runs/bert --config.data.cache_dir=/shared/cache
#
# What stands behind `--` goes to `bertjax pretrain`. The work directory, the cache and the text must lie on a disk that
# all nodes share, or in an object store (s3://, gs://). Options: nodes (1), GPUs of a node (8), processor cores of a GPU (8), time limit (24:00:00).
set -euo pipefail

job() {
  # The batch script: `exec` of this file with BERTJAX_JOB set. srun ends all processes when one of them fails.
  local status=0
  srun --kill-on-bad-exit=1 "${BERTJAX:-bertjax}" pretrain "$@" || status=$?
  case "$status" in
    75 | 130 | 134 | 137 | 143)
      # A process was lost, or all were asked to stop and have saved: the same command resumes.
      if ((${SLURM_RESTART_COUNT:-0} < ${BERTJAX_MAX_RESTARTS:-50})); then
        echo "exit status $status: queueing job $SLURM_JOB_ID again" >&2
        scontrol requeue "$SLURM_JOB_ID"
      fi
      ;;
  esac
  exit "$status"
}

usage() {
  sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p;}' "$0"
}

submit() {
  local nodes=1 gpus=8 cpus=8 time=24:00:00 dry_run=false
  local -a more=()
  while (($#)); do
    case "$1" in
      --dry-run) dry_run=true ;;
      --nodes | --gpus | --cpus | --time)
        printf -v "${1#--}" %s "${2:?a value is missing behind $1}"
        shift
        ;;
      --partition)
        more+=("--partition=${2:?a value is missing behind $1}")
        shift
        ;;
      --help)
        usage
        return
        ;;
      --)
        shift
        break
        ;;
      *)
        echo "unknown option $1 (what is for bertjax stands behind --)" >&2
        return 2
        ;;
    esac
    shift
  done
  if ! (($#)); then
    usage >&2
    return 2
  fi
  local -a command=(
    sbatch "--nodes=$nodes" "--ntasks-per-node=$gpus" "--gpus-per-node=$gpus" "--cpus-per-task=$cpus" "--time=$time"
    --job-name=bertjax --requeue --open-mode=append
    # SIGTERM to the processes two minutes before the end: they save and exit with 143.
    --signal=TERM@120 "--export=ALL,BERTJAX_JOB=1" "${more[@]}" "$0" "$@"
  )
  if $dry_run; then
    printf '%q ' "${command[@]}"
    echo
  else
    "${command[@]}"
  fi
}

if [[ -n "${BERTJAX_JOB:-}" ]]; then
  job "$@"
else
  submit "$@"
fi
