#!/usr/bin/env bash
# Trains on all GPUs of this machine. MODE= says how; flags go to what trains.
#     bash run.sh                       towers: one process, a copy of the network on each GPU
#     MODE=threads bash run.sh          one process, a thread for each GPU
#     MODE=workers bash run.sh          a parameter server and a worker for each GPU
#     WORKERS=2 bash run.sh             a parameter server and workers that each have towers
# The same with PORT=, PYTHON= and LOCAL_ONLY=1: tfdist/start/launch.py says what they do.
set -u
here=$(cd "${BASH_SOURCE[0]%run.sh}." && pwd)
python=${PYTHON:-$here/../.venv/bin/python}
[ -n "${PYTHON:-}" ] || [ -x "$python" ] || python=python
command -v "$python" >/dev/null || {
  echo "run.sh: there is no $python; make .venv beside the folder, or set PYTHON=" >&2
  exit 1
}
start=(--start-ps=1 --start-workers=2)
case ${MODE:=towers} in
  towers)
    [ -n "${WORKERS:-}${PS:-}" ] || start=(--alone=towers.py)
    ;;
  threads)
    start=(--alone=threads.py)
    ;;
  workers)  # one for each GPU, and it sees no other
    gpus=${CUDA_VISIBLE_DEVICES-$(nvidia-smi --query-gpu=index --format=csv,noheader 2>/dev/null |
      paste -sd, -)}
    start=(--start-ps=1 --start-workers=2 --gpus="$gpus" --num_gpus=1)
    ;;
  *)
    echo "run.sh: MODE=$MODE is none of towers, threads, workers" >&2
    exit 1
    ;;
esac
exec "$python" "$here/find_library.py" "${start[@]}" "$@"
