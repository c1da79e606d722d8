"""Runs any task of the cluster, to have the same command for all.

    python task.py --job_name=ps --ps_hosts=... --worker_hosts=... --task_index=0

Without --job_name it runs the task that TF_CONFIG names.
"""

import json
import os
import sys

from absl import flags
import find_library  # noqa: F401  (finds tfdist)
from tfdist.start import console
import evaluator
import ps
import worker

FLAGS = flags.FLAGS
PROGRAMS = {'ps': ps.main, 'worker': worker.main, 'evaluator': evaluator.main}
flags.DEFINE_enum('job_name', None, list(PROGRAMS), 'which program to run')


def main(argv):
    job_name = FLAGS.job_name
    if not job_name:
        try:
            job_name = json.loads(os.environ.get('TF_CONFIG', ''))['task']['type']
        except (ValueError, KeyError, TypeError):
            sys.exit('task: give --job_name, or a task in TF_CONFIG.')
        if job_name in ('chief', 'master'):  # what some engines call worker 0
            job_name = 'worker'
    if job_name not in PROGRAMS:
        sys.exit(f'task: TF_CONFIG has a task of type {job_name}; there are {", ".join(PROGRAMS)}.')
    PROGRAMS[job_name](argv)


if __name__ == '__main__':
    console.run(main)
