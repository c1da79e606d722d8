#!/usr/bin/env bash
# Starts two workers on this machine, and waits for their end. One of AD-PSGD may be killed.
#     WORKERS=4 bash run.sh --train_steps=5000           more of them; flags go to the workers
# The same with PORT=, PYTHON= and LOCAL_ONLY=1: tfdist/start/launch.py says what they do.
set -u
here=$(cd "${BASH_SOURCE[0]%run.sh}." && pwd)
python=${PYTHON:-$here/../.venv/bin/python}
[ -n "${PYTHON:-}" ] || [ -x "$python" ] || python=python
command -v "$python" >/dev/null || {
  echo "run.sh: there is no $python; make .venv beside the folder, or set PYTHON=" >&2
  exit 1
}
exec "$python" "$here/find_library.py" --start-workers=2 --others-go-on-unless=algorithm=d-psgd,sgp "$@"
