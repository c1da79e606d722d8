"""Is it alive: tasks that do not answer, steps that do not come back. No silent wait."""

import socket
import threading
import time

from tfdist import awake, console, keepalive, patience
from tfdist.task_flags import FLAGS

_BUSY = 0.5  # of a processor: a process that has had more computes, and waits for nobody


def silence(address):
    """Returns why no task answers at `address`, a host:port; the empty string if one does."""
    host, _, port = address.rpartition(':')
    try:
        with socket.create_connection((host.strip('[]'), int(port)), timeout=2) as connection:
            # The system accepts connections for a process that is stuck, and other programs listen
            # too. Servers of TensorFlow speak HTTP/2, which begins with settings (type 4).
            connection.sendall(b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n' + b'\0\0\0\4\0\0\0\0\0')
            answer = connection.recv(9)
        if not answer:  # so do tunnels whose other end has nobody to connect with
            return 'it closes the connection'
        return '' if answer[3:4] == b'\4' else 'it is no server of TensorFlow'
    except OSError as error:
        return error.strerror or str(error)


def watch(resolver, *jobs, patience_secs=None):
    """Waits until each task of some jobs answers, and from then on keeps an eye on them.

    Ends this process when one has not answered for some time, or when what it waits for does not
    come, and says so. TensorFlow itself waits for ever and in silence: for a task that is not there
    yet, for one that died and should come back, and on a connection that is dead.

    Args:
      resolver: a cluster resolver, of a worker or of the chief.
      *jobs: strings, whom to watch, 'ps' or 'worker'; by default 'ps'.
      patience_secs: float, how long to wait for one that answered before; --patience_secs if None,
        and always for those that are not there yet.

    Returns:
      A `threading.Event`: set it to stop.
    """
    spec = resolver.cluster_spec()
    me = 'train' if resolver.task_type == 'chief' else f'worker {resolver.task_id}'
    addresses = {f'{job} {i}': spec.task_address(job, i)
                 for job in spec.jobs for i in spec.task_indices(job)
                 if (job, i) != (resolver.task_type, resolver.task_id)}
    watched = [task for task in addresses if task.partition(' ')[0] in (jobs or ['ps'])]
    heard = dict.fromkeys(watched, awake.seconds())
    told = dict(heard)

    def says(task, reason):
        return f'{task} at {addresses[task]} does not answer ({reason})'

    def all_answer(patience_secs):
        silent = False
        for task in watched:
            reason = silence(addresses[task])
            if not reason:
                heard[task] = told[task] = awake.seconds()
                continue
            silent = True
            if awake.seconds() - heard[task] > patience_secs:
                console.give_up(f'{me}: {says(task, reason)}. Gave up after {patience_secs:g} s.')
            if awake.seconds() - told[task] > 5:
                told[task] = awake.seconds()
                console.say(me, f'{says(task, reason)}; waiting')
        return not silent

    def why():
        reasons = {task: silence(address) for task, address in addresses.items()}
        return ', '.join(says(*each) for each in reasons.items() if each[1]) or 'all tasks answer'

    def keep_looking():
        before, computed = awake.seconds(), time.process_time()
        while not stop.wait(1):
            answered = all_answer(FLAGS.patience_secs if patience_secs is None else patience_secs)
            seconds, before = awake.seconds() - before, awake.seconds()
            busy, computed = time.process_time() - computed, time.process_time()
            if answered and busy < _BUSY * seconds:
                patience.PATIENCE.count(seconds, me, why)

    while not all_answer(FLAGS.patience_secs):
        time.sleep(0.1)
    keepalive.begin()
    stop = threading.Event()
    threading.Thread(target=keep_looking, daemon=True).start()
    return stop
