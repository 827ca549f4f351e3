#!/usr/bin/env bash
# Trains on Google Kubernetes Engine: a JobSet with one pod a host, applied by kubectl.
#
#   scripts/launch/gke.sh [--dry-run] --name NAME --image IMAGE --hosts N --claim CLAIM \
#       (--tpu TYPE --topology AxB --chips N | --gpu TYPE --gpus N) -- \
#       --config bert:base --workdir /shared/runs/bert --config.data.cache_dir=/shared/cache
#
# What stands behind `--` goes to `bertjax pretrain`. CLAIM is a persistent volume claim that many pods can write to
# (Filestore); it is mounted at /shared. Chips or GPUs are those of one host. --dry-run prints the JobSet and applies
# nothing. Kubernetes starts all pods again when one of them fails, but not when the config is wrong (exit status 2).
set -euo pipefail

usage() {
  sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p;}' "$0"
}

dry_run=false
name='' image='' hosts='' claim='' tpu='' topology='' chips='' gpu='' gpus=''
while (($#)); do
  case "$1" in
    --dry-run) dry_run=true ;;
    --name | --image | --hosts | --claim | --tpu | --topology | --chips | --gpu | --gpus)
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
if [[ -z "$name" || -z "$image" || -z "$hosts" || -z "$claim" || -z "$tpu$gpu" ]] || ! (($#)); then
  usage >&2
  exit 2
fi

quoted() {
  # A JSON string, which is YAML too.
  local text="${1//\\/\\\\}"
  printf '"%s"' "${text//\"/\\\"}"
}

if [[ -n "$tpu" ]]; then
  # GKE tells every pod of a slice who the others are; jax reads it.
  selector="cloud.google.com/gke-tpu-accelerator: $(quoted "$tpu")
                cloud.google.com/gke-tpu-topology: $(quoted "${topology:?--topology is missing}")"
  resource="google.com/tpu: ${chips:?--chips is missing}"
  platform=tpu
  place=''
else
  selector="cloud.google.com/gke-accelerator: $(quoted "$gpu")"
  resource="nvidia.com/gpu: ${gpus:?--gpus is missing}"
  platform=gpu
  place="--config.distributed.coordinator_address=$name-workers-0-0.$name:8476"
  place+=" --config.distributed.num_processes=$hosts --config.distributed.process_id=\$JOB_COMPLETION_INDEX"
fi
printf -v arguments '%q ' "$@" "--config.platform=$platform"

render() {
  cat <<EOF
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: $name
spec:
  failurePolicy:
    maxRestarts: ${BERTJAX_MAX_RESTARTS:-50}
    rules:
      - action: FailJobSet
        onJobFailureReasons: [PodFailurePolicy]
  replicatedJobs:
    - name: workers
      replicas: 1
      template:
        spec:
          parallelism: $hosts
          completions: $hosts
          completionMode: Indexed
          backoffLimit: 0
          podFailurePolicy:
            rules:
              - action: FailJob
                onExitCodes:
                  operator: In
                  values: [2]
          template:
            spec:
              restartPolicy: Never
              terminationGracePeriodSeconds: 120
              nodeSelector:
                $selector
              containers:
                - name: bertjax
                  image: $(quoted "$image")
                  command: [bash, -c]
                  args:
                    - $(quoted "exec bertjax pretrain $arguments$place")
                  resources:
                    limits:
                      $resource
                  volumeMounts:
                    - name: shared
                      mountPath: /shared
              volumes:
                - name: shared
                  persistentVolumeClaim:
                    claimName: $claim
EOF
}

if $dry_run; then
  render
else
  render | kubectl apply -f -
fi
