"""Becomes the task of this pod of an Indexed Job, in the folder in which it is called.

    python task.py --service=hogwild --ps=1 --workers=2 --train_steps=3000

The first pods are the parameter servers; then come the workers and, with --evaluator, the
evaluator. Other flags go to workers and evaluator. The host name of a pod is the name of the job
and the pod's index; the headless service resolves it.
"""

import argparse
import json
import os
import sys


def task(service, num_ps, num_workers, index, port=2222):
    """Returns TF_CONFIG for a pod, as a dict.

    Args:
      service: string, the name of the job and of its service.
      num_ps: int.
      num_workers: int.
      index: int, of the pod, from 0 on.
      port: int, the port on which each task listens.
    """
    addresses = [f'{service}-{i}.{service}:{port}' for i in range(num_ps + num_workers)]
    tasks = [('ps', i) for i in range(num_ps)] + [('worker', i) for i in range(num_workers)]
    job, task_index = (tasks + [('evaluator', 0)])[index]
    return {'cluster': {'ps': addresses[:num_ps], 'worker': addresses[num_ps:]},
            'task': {'type': job, 'index': task_index}}


def main():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument('--service', required=True, help='name of the job and of its service')
    parser.add_argument('--ps', type=int, required=True, help='how many parameter servers')
    parser.add_argument('--workers', type=int, required=True, help='how many workers')
    parser.add_argument('--evaluator', action='store_true', help='one more pod, as evaluator')
    options, flags = parser.parse_known_args()
    index = os.environ.get('JOB_COMPLETION_INDEX', '')
    pods = options.ps + options.workers + options.evaluator
    if not index.isdigit() or int(index) >= pods:
        sys.exit(f'JOB_COMPLETION_INDEX is "{index}", and there are {pods} pods, counted from 0. '
                 'An Indexed Job sets it: completions and parallelism must be as many.')
    config = task(options.service, options.ps, options.workers, int(index))
    job = config['task']['type']
    os.environ['TF_CONFIG'] = json.dumps(config)
    if job == 'ps':
        flags = []
    os.execv(sys.executable, [sys.executable, f'{job}.py', *flags])


if __name__ == '__main__':
    main()
