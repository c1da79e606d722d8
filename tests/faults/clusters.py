"""Clusters of which each task is on a host of its own, for tests of networks and of machines."""

import contextlib
import time

from measuring import hosts

from processes import SLOW, STEP, Tasks, wait_until


@contextlib.contextmanager
def cluster(programs, folder, *flags, **wire):
    """Starts the tasks of a folder, each on a host of its own, and waits until all train.

    Args:
      programs: `Programs`.
      folder: string.
      *flags: strings, for those that train.
      **wire: the arguments `round_trip` and `lost` of `hosts.Hosts`.

    Yields:
      `hosts.Hosts`; a function that starts a task, of its job and its index; and the tasks, a dict
      of `Program` by (job, index).
    """
    names = ['worker-0', 'worker-1']
    names += {'Ring-AllReduce': [], 'In-Graph-Replication': ['ps-0', 'chief-0']}.get(
        folder, ['ps-0'])
    if 'chief-0' not in names:
        flags = [SLOW, *flags]
    with hosts.Hosts(programs.directory, names, **wire) as network:
        tasks = Tasks(programs, num_ps=names.count('ps-0'), folder=folder,
                      python=network.python(), flags=[
                          '--train_steps=1000000', '--log_every_n_steps=20',
                          '--save_checkpoint_secs=1', '--patience_secs=60',
                          f'--model_dir={programs.directory / "model"}', *flags])
        running = {}
        for name in names:
            job, index = name.split('-')
            running[job, int(index)] = tasks.start(job, int(index))
        try:
            for task in training(running):
                running[task].wait_for(STEP, 3)
            yield network, tasks.start, running
        finally:
            for program in running.values():
                program.end()


def training(running):
    """Returns those of the tasks, a dict by (job, index), that train."""
    return [task for task in running if task[0] == ('chief' if ('chief', 0) in running
                                                    else 'worker')]


def host(task):
    """Returns the name of the host of a task, a pair of job and index."""
    return '-'.join(map(str, task))


def seconds_until_all_train(running, at_most):
    """Waits until all make steps again; fails with what they printed if that takes too long.

    Args:
      running: dict of `Program` by (job, index).
      at_most: float, seconds.

    Returns:
      Float, how long it took.
    """
    began = time.monotonic()
    seen = {task: len(running[task].matches(STEP)) for task in training(running)}

    def late():
        return [task for task in seen if len(running[task].matches(STEP)) < seen[task] + 3]

    wait_until(lambda: not late() or time.monotonic() > began + at_most
               or not all(program.running for program in running.values()), 'never')
    assert not late(), '\n'.join(map(str, running.values()))
    return time.monotonic() - began
