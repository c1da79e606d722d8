#!/usr/bin/env bash
# Runs this folder's programs on this machine until they end: parameter servers (if there is a
# ps.py) and workers, each a process of its own. With a train.py, that is the chief, whom they serve.
# Prepares the data before, and starts an evaluator, where the folder has one.
#
#     bash run.sh                               with the defaults
#     WORKERS=4 PS=2 bash run.sh --train_steps=5000    more processes; flags go to the workers,
#                                               or to the chief
#     PORT=2222 bash run.sh                     fixed ports, from 2222 on, instead of free ones
#     PYTHON=python3.7 bash run.sh              another interpreter
#     LOCAL_ONLY=1 bash run.sh                  in a network of their own: nobody else can connect,
#                                               and nothing can be downloaded (Linux)
#
# The exit status is 0 if and only if every process ended well. When one fails, and on Ctrl-C, the
# others are ended.
set -u

case ${LOCAL_ONLY:-} in
  '') ;;
  1)
    for tool in unshare ip; do
      if ! command -v "$tool" >/dev/null; then
        echo "run.sh: LOCAL_ONLY=1 needs Linux and its command $tool, which is not here" >&2
        exit 1
      fi
    done
    # Root may make a network. Others may as the root of a user namespace, and what they write there
    # is theirs. Root itself would lose, in one, its power over the files of others.
    network=(unshare --net)
    "${network[@]}" ip link set lo up 2>/dev/null || network=(unshare --user --map-root-user --net)
    if ! reason=$("${network[@]}" ip link set lo up 2>&1); then
      echo "run.sh: LOCAL_ONLY=1: this system lets you make no network of your own ($reason)" >&2
      exit 1
    fi
    export LOCAL_ONLY=
    # shellcheck disable=SC2016  # for the shell inside
    exec "${network[@]}" "$BASH" -c 'ip link set lo up && exec "$@"' run.sh \
      "$BASH" "${BASH_SOURCE[0]}" "$@"
    ;;
  *) echo "run.sh: LOCAL_ONLY=$LOCAL_ONLY is neither 1 nor empty" >&2; exit 1 ;;
esac

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
alone=  # a program that runs without a cluster, instead of all tasks
gpus=()  # the GPU that each worker sees; with none here, all see all
[ -f "$here/worker.py" ] || alone=train.py
# shellcheck source=/dev/null
[ -f "$here/run.defaults" ] && . "$here/run.defaults"
if [ -f "$here/ps.py" ]; then PS=${PS:-1}; else PS=0; fi
WORKERS=${WORKERS:-2}
if [ -z "${PYTHON:-}" ]; then
  PYTHON=python
  [ -x "$here/../.venv/bin/python" ] && PYTHON=$here/../.venv/bin/python
fi
if ! command -v "$PYTHON" >/dev/null; then
  echo "run.sh: there is no $PYTHON; make .venv beside the folder, or set PYTHON=" >&2
  exit 1
fi
if [ -n "$alone" ]; then
  exec "$PYTHON" "$here/$alone" "$@"
fi
if [ -f "$here/prepare_data.py" ]; then
  "$PYTHON" "$here/prepare_data.py" "$@" || exit
fi
for name in PS WORKERS PORT; do
  value=${!name:-1}
  [ "$name" = PS ] && [ ! -f "$here/ps.py" ] && continue
  case $value in
    *[!0-9]* | 0*) echo "run.sh: $name=$value is not a positive number" >&2; exit 1 ;;
  esac
done

chiefs=0
[ ! -f "$here/train.py" ] || chiefs=1
tasks=$((PS + WORKERS + chiefs))

# Ports below the range from which systems take those of outgoing connections.
free_ports='
import random, socket, sys
ports = []
for port in random.sample(range(10000, 32768), 1000):
    with socket.socket() as probe:
        if len(ports) < int(sys.argv[1]) and probe.connect_ex(("localhost", port)):
            ports.append(port)
print(*ports)'
if [ -n "${PORT:-}" ]; then
  if [ $((PORT + tasks)) -gt 65536 ]; then
    echo "run.sh: the ports from PORT=$PORT on are too few: the last one is 65535" >&2
    exit 1
  fi
  ports=$(seq "$PORT" $((PORT + tasks - 1)))
else
  ports=$("$PYTHON" -S -c "$free_ports" "$tasks") || exit 1
fi
hosts=()
for port in $ports; do
  hosts+=("\"localhost:$port\"")
done
# list FIRST COUNT: that part of the hosts as a JSON list
list() { local IFS=,; echo "[${hosts[*]:$1:$2}]"; }
cluster="\"worker\": $(list "$PS" "$WORKERS")"
[ "$PS" = 0 ] || cluster="\"ps\": $(list 0 "$PS"), $cluster"
[ "$chiefs" = 0 ] || cluster+=", \"chief\": $(list $((PS + WORKERS)) 1)"

# Each process gets its share of the cores: more threads than cores only wait for each other.
cores=$(getconf _NPROCESSORS_ONLN)
threads=$((cores / tasks))
[ "$threads" -ge 1 ] || threads=1

pids=()
# start TYPE INDEX FLAGS...: one task of the cluster
start() {
  local task="{\"type\": \"$1\", \"index\": $2}" program=$here/$1.py
  [ "$1" != chief ] || program=$here/train.py
  shift 2
  TF_CONFIG="{\"cluster\": {$cluster}, \"task\": $task}" \
    "$PYTHON" "$program" --num_threads="$threads" "$@" &
  pids+=($!)
}

# stop STATUS: ends the processes that are left, and then itself
stop() {
  trap '' INT TERM HUP
  local pid own
  own=$(jobs -p)  # a signal may have come before the last one was in pids
  for pid in $own; do kill "$pid" 2>/dev/null; done
  for pid in $own; do
    for _ in {1..50}; do
      kill -0 "$pid" 2>/dev/null || continue 2
      sleep 0.1
    done
    kill -9 "$pid" 2>/dev/null
  done
  wait
  exit "$1"
}
trap 'stop 130' INT
trap 'stop 143' TERM
trap 'stop 129' HUP

for ((i = 0; i < PS; i++)); do
  CUDA_VISIBLE_DEVICES='' start ps "$i"  # the GPUs are for the workers
done
for ((i = 0; i < WORKERS; i++)); do
  if [ "$chiefs" -gt 0 ]; then
    start worker "$i"
  elif [ "${#gpus[@]}" -gt 0 ]; then
    CUDA_VISIBLE_DEVICES=${gpus[i]} start worker "$i" "$@"
  else
    start worker "$i" "$@"
  fi
done
[ "$chiefs" = 0 ] || CUDA_VISIBLE_DEVICES='' start chief 0 "$@"
if [ -f "$here/evaluator.py" ]; then
  CUDA_VISIBLE_DEVICES='' start evaluator 0 "$@"
fi

# Wait for whichever ends next (bash 3.2 has no `wait -n`).
while [ "${#pids[@]}" -gt 0 ]; do
  sleep 0.1
  left=()
  for pid in "${pids[@]}"; do
    if kill -0 "$pid" 2>/dev/null; then
      left+=("$pid")
    else
      wait "$pid" || stop "$?"
    fi
  done
  pids=(${left[@]+"${left[@]}"})
done
