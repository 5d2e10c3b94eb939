#!/usr/bin/env bash
# bash tools/dist_test.sh CONFIG CHECKPOINT GPUS [options of tools/test.py]
#
# GPUS is the number of processes on this machine; without GPUs they run on the
# CPU. On several machines: the same command on each, with NNODES, NODE_RANK
# (0, 1, ...) and MASTER_ADDR set. PORT changes the port.

set -e

if [ "$#" -lt 3 ]; then
    sed -n '2,6s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi

CONFIG=$1
CHECKPOINT=$2
GPUS=$3
shift 3
TARGET=("$CONFIG" "$CHECKPOINT")

# Through the interpreter: the torchrun on PATH may belong to another one.
exec python -m torch.distributed.run \
    --nnodes="${NNODES:-1}" \
    --node_rank="${NODE_RANK:-0}" \
    --master_addr="${MASTER_ADDR:-127.0.0.1}" \
    --master_port="${PORT:-29500}" \
    --nproc_per_node="$GPUS" \
    "$(dirname "$0")/test.py" \
    "${TARGET[@]}" \
    --launcher pytorch \
    "$@"
