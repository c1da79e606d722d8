"""Becomes a task of an example: each task of a Slurm step starts this program.

    srun --distribution=block python start_task.py EXAMPLE [FLAGS OF worker.py]

Tells the ranks of the step apart: the first PS ranks, by default one, are parameter servers, the
others workers. Sets TF_CONFIG accordingly, and becomes the ps.py or worker.py of the folder
EXAMPLE, so that signals and the exit status are those of that program.
"""

import json
import os
import subprocess
import sys


def number(name, default=None):
    """Returns an environment variable as an int; ends the program if it is not one."""
    value = os.environ.get(name, default)
    try:
        return int(value)
    except ValueError:
        sys.exit(f'start_task.py: {name}={value} is not a number.')
    except TypeError:
        sys.exit(f'start_task.py: {name} is not set. Start it by srun, as train.sbatch does.')


def node_of_each_rank():
    """Returns the names of the nodes on which the ranks 0, 1, ... of this step run.

    Raises:
      SystemExit: if ranks are not assigned node by node.
    """
    names = subprocess.check_output(
        ['scontrol', 'show', 'hostnames', os.environ['SLURM_STEP_NODELIST']],
        universal_newlines=True).split()
    counts = []  # 2(x3),1 says: 2 on each of three nodes, then 1
    for part in os.environ['SLURM_STEP_TASKS_PER_NODE'].split(','):
        count, _, times = part.partition('(x')
        counts += [int(count)] * int(times.rstrip(')') or 1)
    nodes = [name for name, count in zip(names, counts) for _ in range(count)]
    here, rank = os.environ['SLURMD_NODENAME'], number('SLURM_PROCID')
    if nodes[rank] != here:
        sys.exit(f'start_task.py: rank {rank} is on {here} and not on {nodes[rank]}. Start it by '
                 'srun --distribution=block.')
    return nodes


def main(argv):
    if len(argv) < 2:
        sys.exit('start_task.py: name the folder of an example, such as ../../HogWild.')
    example, worker_flags = os.path.abspath(argv[1]), argv[2:]
    if not os.path.exists(os.path.join(example, 'worker.py')):
        sys.exit(f'start_task.py: there is no worker.py in {example}.')
    rank, num_tasks = number('SLURM_PROCID'), number('SLURM_STEP_NUM_TASKS')
    num_ps = number('PS', 1) if os.path.exists(os.path.join(example, 'ps.py')) else 0
    if not 0 <= num_ps < num_tasks:
        sys.exit(f'start_task.py: of {num_tasks} tasks {num_ps} cannot be parameter servers: there '
                 'has to be a worker. Give --ntasks or PS=.')
    # Each job gets 64 ports of its own, below those that systems take for outgoing connections.
    port = number('PORT', 10000 + number('SLURM_JOB_ID') % 350 * 64)
    hosts = [f'{node}:{port + i}' for i, node in enumerate(node_of_each_rank())]
    cluster = {'ps': hosts[:num_ps], 'worker': hosts[num_ps:]}
    job, index = ('ps', rank) if rank < num_ps else ('worker', rank - num_ps)
    os.environ['TF_CONFIG'] = json.dumps({
        'cluster': {name: addresses for name, addresses in cluster.items() if addresses},
        'task': {'type': job, 'index': index}})
    if job == 'ps':
        os.environ['CUDA_VISIBLE_DEVICES'] = ''  # the GPUs are for the workers
    # More threads than the task has CPUs would only wait for each other.
    flags = [f'--num_threads={number("SLURM_CPUS_PER_TASK", 1)}']
    flags += worker_flags if job == 'worker' else []
    os.execv(sys.executable, [sys.executable, os.path.join(example, f'{job}.py'), *flags])


if __name__ == '__main__':
    main(sys.argv)
