#!/usr/bin/env bash
# Trains in one process; flags go to it. PYTHON= names another interpreter.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-$here/../.venv/bin/python}
[ -n "${PYTHON:-}" ] || [ -x "$python" ] || python=python
command -v "$python" >/dev/null || {
  echo "run.sh: there is no $python; make .venv beside the folder, or set PYTHON=" >&2
  exit 1
}
exec "$python" "$here/train.py" "$@"
