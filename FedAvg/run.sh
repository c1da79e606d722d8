#!/usr/bin/env bash
# Starts a ps and two workers on this machine, and waits for their end. `WORKERS=4 PS=2 bash run.sh`
# starts more, flags go to the workers; tfdist/start/launch.py: PORT=, PYTHON=, LOCAL_ONLY=1.
set -u
here=$(cd "${BASH_SOURCE[0]%run.sh}." && pwd)
python=${PYTHON:-$here/../.venv/bin/python}
[ -n "${PYTHON:-}" ] || [ -x "$python" ] || python=python
command -v "$python" >/dev/null || {
  echo "run.sh: there is no $python; make .venv beside the folder, or set PYTHON=" >&2
  exit 1
}
exec "$python" "$here/find_library.py" --start-ps=1 --start-workers=2 "$@"
