#!/usr/bin/env bash
# bash tools/slurm_train.sh PARTITION JOB_NAME CONFIG [WORK_DIR] [options of tools/train.py]
#
# Variables: GPUS (of the job, default 8), GPUS_PER_NODE (default 8),
# CPUS_PER_TASK (default 5), SRUN_ARGS (more options for srun).

set -e

if [ "$#" -lt 3 ]; then
    sed -n '2,5s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi

PARTITION=$1
JOB_NAME=$2
TARGET=("$3")
shift 3
# The fourth argument is the work directory unless it is an option.
if [ "$#" -gt 0 ] && [ "${1#-}" = "$1" ]; then
    TARGET+=("--work-dir=$1")
    shift
fi

# SRUN_ARGS holds several words.
# shellcheck disable=SC2086
exec srun -p "$PARTITION" \
    --job-name="$JOB_NAME" \
    --gres="gpu:${GPUS_PER_NODE:-8}" \
    --ntasks="${GPUS:-8}" \
    --ntasks-per-node="${GPUS_PER_NODE:-8}" \
    --cpus-per-task="${CPUS_PER_TASK:-5}" \
    --kill-on-bad-exit=1 \
    $SRUN_ARGS \
    python -u "$(dirname "$0")/train.py" "${TARGET[@]}" --launcher=slurm "$@"
