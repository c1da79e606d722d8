#!/usr/bin/env bash
# Trains in one process; flags go to it.
# PYTHON= and LOCAL_ONLY=1: tfdist/start/launch.py says what they do.
set -u
here=$(cd "${BASH_SOURCE[0]%run.sh}." && pwd)
python=${PYTHON:-$here/../.venv/bin/python}
[ -n "${PYTHON:-}" ] || [ -x "$python" ] || python=python
command -v "$python" >/dev/null || {
  echo "run.sh: there is no $python; make .venv beside the folder, or set PYTHON=" >&2
  exit 1
}
exec "$python" "$here/find_library.py" --alone=train.py "$@"
