"""Is it alive: tasks that do not answer, and steps that do not come together. No silent wait."""

import socket
import threading
import time

from tfdist import console
from tfdist.task_flags import FLAGS

_WORD_EVERY_SECS = 10


def silence(address):
    """Returns why no task answers at `address`, a host:port; the empty string if one does."""
    host, _, port = address.rpartition(':')
    try:
        with socket.create_connection((host.strip('[]'), int(port)), timeout=2) as connection:
            # The system accepts connections for a process that is stuck, and other programs listen
            # too. Servers of TensorFlow speak HTTP/2, which begins with settings (type 4).
            connection.sendall(b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n' + b'\0\0\0\4\0\0\0\0\0')
            is_server = connection.recv(9)[3:4] == b'\4'
        return '' if is_server else 'it is no server of TensorFlow'
    except OSError as error:
        return error.strerror or str(error)


def watch(resolver, job='ps', patience_secs=None):
    """Waits until each task of a job answers, and from then on keeps an eye on them.

    Ends this process when one has not answered for some time, and says so. TensorFlow itself waits
    for a task for ever and in silence: for one that is not there yet, and for one that died and
    should come back.

    Args:
      resolver: a cluster resolver, of a worker or of the chief.
      job: 'ps' or 'worker', whom to watch.
      patience_secs: float, how long to wait for one that answered before; --patience_secs if None,
        and always for those that are not there yet.

    Returns:
      A `threading.Event`: set it to stop.
    """
    me = 'train' if resolver.task_type == 'chief' else f'worker {resolver.task_id}'
    addresses = dict(enumerate(resolver.cluster_spec().job_tasks(job)))
    if job == resolver.task_type:
        del addresses[resolver.task_id]
    heard = dict.fromkeys(addresses, time.monotonic())
    told = dict(heard)

    def all_answer(patience_secs):
        silent = False
        for i, address in addresses.items():
            reason = silence(address)
            if not reason:
                heard[i] = told[i] = time.monotonic()
                continue
            silent = True
            line = f'{job} {i} at {address} does not answer ({reason})'
            if time.monotonic() - heard[i] > patience_secs:
                console.give_up(f'{me}: {line}. Gave up after {patience_secs:g} s.')
            if time.monotonic() - told[i] > 5:
                told[i] = time.monotonic()
                console.say(me, f'{line}; waiting')
        return not silent

    def keep_looking():
        while not stop.wait(1):
            all_answer(FLAGS.patience_secs if patience_secs is None else patience_secs)

    while not all_answer(FLAGS.patience_secs):
        time.sleep(0.1)
    stop = threading.Event()
    threading.Thread(target=keep_looking, daemon=True).start()
    return stop


class Patience:
    """Says when a step takes long, and ends the program when it takes too long."""

    def __init__(self, name, patience_secs):
        """Makes a stopped clock.

        Args:
          name: string, who is speaking, for example 'worker 0'.
          patience_secs: float, how long to wait.
        """
        self._name = name
        self._patience_secs = patience_secs
        self._since = None

    def start(self):
        """A step begins."""
        self._since = time.monotonic()

    def stop(self):
        """What comes now may take its time."""
        self._since = None

    def watch(self):
        """Begins to look at the clock, in a thread."""
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self):
        said = 0.
        while True:
            time.sleep(0.5)
            since = self._since
            if since is None:
                continue
            waited = time.monotonic() - since
            if waited > self._patience_secs:
                console.give_up(f'{self._name}: the step is not complete. Is a worker dead? Gave '
                                f'up after {self._patience_secs:g} s.')
            if waited > _WORD_EVERY_SECS and time.monotonic() - said > _WORD_EVERY_SECS:
                said = time.monotonic()
                console.say(self._name,
                            f'the step is not complete after {waited:.0f} s; waiting')
