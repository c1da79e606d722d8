#!/usr/bin/env bash
# Runs every example on the same problem, and makes a table and pictures of the results: in `mine`,
# or with --quick in `quick`.
#
#     bash run.sh                    under an hour on two cores; stopped, it goes on from there
#     bash run.sh --quick            under three minutes
#     bash run.sh --help             what else there is
set -u

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if [ -z "${PYTHON:-}" ]; then
  PYTHON=python
  [ -x "$here/../.venv/bin/python" ] && PYTHON=$here/../.venv/bin/python
fi
if ! command -v "$PYTHON" >/dev/null; then
  echo "run.sh: there is no $PYTHON; make .venv beside the folder, or set PYTHON=" >&2
  exit 1
fi
# The root of the collection has `measuring`, which stands beside this folder.
export PYTHONPATH=$here/..${PYTHONPATH:+:$PYTHONPATH}
exec "$PYTHON" "$here/compare.py" "$@"
