#!/usr/bin/env bash
# Simulates a cluster on which a scheme trains, in one process.
#
#     bash run.sh --scheme=AGN --workers=128
#     bash run.sh --scheme=AGN --help        all flags, those of the scheme, too
#     bash run.sh --replay=DIR               repeats a real run
#     bash run.sh --advise                   which scheme for your model and your cluster
#     bash run.sh --regret                   the advisor judged by real runs on imitated clusters
#     bash run.sh --guide                    what the advisor says of three models, three clusters
#     bash run.sh --study                    all schemes with 1 to 1,024 workers
#     bash run.sh --claims                   what papers claim, and whether it holds
#     bash run.sh --validate                 simulated against really run, on this machine
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-$here/../.venv/bin/python}
[ -n "${PYTHON:-}" ] || [ -x "$python" ] || python=python
command -v "$python" >/dev/null || {
  echo "run.sh: there is no $python; make .venv beside the folder, or set PYTHON=" >&2
  exit 1
}
case ${1:-} in
  --claims*) program=claims ;;
  --advise) program=advise ;;
  --regret) program=regret ;;
  --guide) program=guide ;;
  --study) program=study ;;
  --validate) program=validate ;;
  *) program=simulate ;;
esac
# The root of the collection has `measuring`, which stands beside this folder.
export PYTHONPATH=$here/..${PYTHONPATH:+:$PYTHONPATH}
exec "$python" "$here/$program.py" "$@"
