#!/usr/bin/env bash
# bash tools/dist_train.sh CONFIG GPUS [options of tools/train.py]
#
# GPUS is the number of processes on this machine; without GPUs they run on the
# CPU. On several machines: the same command on each, with NNODES, NODE_RANK
# (0, 1, ...) and MASTER_ADDR set. PORT changes the port.

set -e

if [ "$#" -lt 2 ]; then
    sed -n '2,6s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi

CONFIG=$1
GPUS=$2
shift 2
TARGET=("$CONFIG")

# Through the interpreter: the torchrun on PATH may belong to another one.
exec python -m torch.distributed.run \
    --nnodes="${NNODES:-1}" \
    --node_rank="${NODE_RANK:-0}" \
    --master_addr="${MASTER_ADDR:-127.0.0.1}" \
    --master_port="${PORT:-29500}" \
    --nproc_per_node="$GPUS" \
    "$(dirname "$0")/train.py" \
    "${TARGET[@]}" \
    --launcher pytorch \
    "$@"
