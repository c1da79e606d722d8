#!/usr/bin/env bash
# Prepares the data; then starts two parameter servers, two workers and the evaluator on this
# machine, and waits for their end. Without --model_dir each run gets a new directory in runs/.
#     WORKERS=4 PS=3 bash run.sh --train_steps=5000      more of them; flags go to all but the ps
# The same with PORT=, PYTHON= and LOCAL_ONLY=1: tfdist/start/launch.py says what they do.
set -u
here=$(cd "${BASH_SOURCE[0]%run.sh}." && pwd)
python=${PYTHON:-$here/../.venv/bin/python}
[ -n "${PYTHON:-}" ] || [ -x "$python" ] || python=python
command -v "$python" >/dev/null || {
  echo "run.sh: there is no $python; make .venv beside the folder, or set PYTHON=" >&2
  exit 1
}
case " $*" in
  *" --model_dir"*) ;;
  *) set -- --model_dir="$here/runs/$(date +%Y-%m-%d-%H%M%S)" "$@" ;;
esac
exec "$python" "$here/find_library.py" --first=prepare_data.py --start-ps=2 --start-workers=2 \
  --start-evaluator "$@"
