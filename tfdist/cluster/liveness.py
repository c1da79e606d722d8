"""Watches for tasks that do not answer and steps that do not return, so that no wait is silent."""

import contextlib
import itertools
import os
import re
import socket
import struct
import threading
import time

from absl import flags
from tfdist.cluster import awake_clock, keepalive, patience
from tfdist.start import console

FLAGS = flags.FLAGS
flags.DEFINE_float('patience_secs', 300, 'how long to wait for a task that does not answer',
                   lower_bound=0)
_GREETING = b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n' + b'\0\0\0\4\0\0\0\0\0'  # with empty settings
_DATA, _HEADERS, _SETTINGS, _PING, _UNKNOWN = 0, 1, 4, 6, 0xfa  # frame types of HTTP/2
_END_STREAM = _ACK = 1  # flags
_LONG = 8000  # bytes, more than any network's packet that is in use
_MOST_FRAMES, _LONGEST_FRAME = 20, 2**14  # in an answer
LATE = 'timed out'  # `silence` found neither an answer nor a refusal: the task is, or was, there
_NO_SERVER = 'it is not a TensorFlow server'
_ROUNDS_PER_LOOK = 10  # of the watch, for another process that is started as the same task
_WORD_EVERY_SECS = 5
_BUSY = 0.5  # of a core: a process that uses more is computing, not waiting


def silence(address):
    """Returns why no task answers at `address`, a host:port; the empty string if one does."""
    try:
        with _connect(address) as connection:
            # To connect proves little: the system accepts for a stuck process, and other programs
            # listen, too. TensorFlow's servers speak HTTP/2, which begins with settings.
            connection.sendall(_GREETING)
            answer = connection.recv(9)
        if not answer:  # as from a tunnel whose far end finds no server
            return 'it closes the connection'
        return '' if answer[3:4] == bytes([_SETTINGS]) else _NO_SERVER
    except UnicodeError:
        return 'that is not a host name'
    except socket.timeout:
        return LATE
    except OSError as error:
        return error.strerror or str(error)


def stranger(address, task):
    """Returns who answers at `address` instead of a task; the empty string if the task does.

    Args:
      address: string, host:port.
      task: string, such as 'ps 0'.
    """
    status = _status(address)
    device = re.search(rb'/job:(\w+)/replica:0/task:(\d+)/', status or b'')
    if not device:
        return _NO_SERVER if status == b'' else ''
    found = b' '.join(device.groups()).decode()
    return '' if found == task else f'that is {found}'


def _status(address):
    """Returns what a server at `address` says of itself, the same bytes each time.

    Empty bytes if it does not know this call; None if there is no answer: `silence` tells why.
    """
    path = b'/tensorflow.WorkerService/GetStatus'
    # In HTTP/2's numbers for headers: a POST by http, its path, host and content type.
    headers = (b'\x83\x86\x04' + bytes([len(path)]) + path + b'\x01\x01x'
               + b'\x0f\x10\x10application/grpc' + b'\0\x02te\x08trailers')
    call = (len(headers).to_bytes(3, 'big') + b'\1\4\0\0\0\1' + headers
            + b'\0\0\5\0\1\0\0\0\1' + bytes(5))  # an empty message
    for kind, marks, content in _frames(address, call):
        if kind == _DATA:
            return content
        if kind == _HEADERS and marks & _END_STREAM:
            return b''
    return None


def takes_long_messages(address):
    """Returns whether a server at `address` answers what does not fit into a packet of a network.

    Where packets have to be smaller on the way, and nobody says so, short messages arrive and long
    ones never do. What the server sends may be lost in the same way, which is not seen from here.
    """
    message = (_LONG.to_bytes(3, 'big') + bytes([_UNKNOWN, 0, 0, 0, 0, 0])
               + bytes(_LONG)  # a server ignores frames that it does not know
               + bytes([0, 0, 8, _PING, 0, 0, 0, 0, 0]) + bytes(8))
    # A server may send a ping of its own, which acknowledges nothing.
    return any(kind == _PING and marks & _ACK for kind, marks, _ in _frames(address, message))


def _frames(address, message):
    """Yields the frames of HTTP/2 that answer a message: type, flags and content, some at most.

    Ends early where the server is busy, or gone.
    """
    with contextlib.suppress(OSError, struct.error):
        with _connect(address) as connection, connection.makefile('rb') as answer:
            connection.sendall(_GREETING + message)
            for _ in range(_MOST_FRAMES):
                length, kind, marks = struct.unpack('>3sBB4x', answer.read(9))
                yield kind, marks, answer.read(min(int.from_bytes(length, 'big'), _LONGEST_FRAME))


def _look_for_double(me, address):
    """Ends this process if another than it answers at its own `address`; `me` is its name."""
    mine = _status(f'localhost:{address.rpartition(":")[2]}')
    there = mine and _status(address)
    if there and mine != there:  # no answer proves nothing: some networks have no way back
        console.give_up(f'{me}: another {me} is at {address}, the address of this one. Is it '
                        'started on two hosts?', status=1)


def _says(task, address, reason):
    return f'{task} at {address} does not answer ({reason})'


def _why(addresses):
    """Returns what is known of a long wait, a string; `addresses` is a dict by task."""
    reasons = {task: silence(address) for task, address in addresses.items()}
    silent = [_says(task, addresses[task], reason) for task, reason in reasons.items() if reason]
    deaf = [f'{task} at {address} answers short messages and no long ones: is the MTU smaller on '
            'the way?' for task, address in addresses.items()
            if not reasons[task] and not takes_long_messages(address)]
    return ', '.join(silent + deaf) or 'all tasks answer'


def _connect(address):
    host, _, port = address.rpartition(':')
    return socket.create_connection((host.strip('[]'), int(port)), timeout=2)


def watch(resolver, *jobs, patience_secs=None, over=None):
    """Waits until each task of some jobs answers, and then watches them.

    Ends this process with a message if a task has not answered for some time, or if the result that
    this process waits for does not come. TensorFlow itself waits silently, for ever: for a task
    that has not started, for one that died and may come back, and on a dead connection.

    Args:
      resolver: cluster resolver of a worker or of the chief.
      *jobs: strings, jobs to watch, 'ps' or 'worker'; by default 'ps'.
      patience_secs: float, how long to wait for a task that answered before; --patience_secs if
        None, as always for a task that has not answered yet.
      over: function that returns whether the run is over, as it may be for a task that is started
        again: then the process ends as those do that were there. Without it a run never is.

    Returns:
      `threading.Event`; setting it stops the watch.
    """
    return _Watch(resolver, jobs or ['ps'], patience_secs, over).begin()


class _Watch:
    """Looks at some tasks again and again. See `watch`."""

    def __init__(self, resolver, jobs, patience_secs, over):
        spec = resolver.cluster_spec()
        self._me = ('train' if resolver.task_type == 'chief' else
                    f'{resolver.task_type} {resolver.task_id}')
        self._own = spec.task_address(resolver.task_type, resolver.task_id)
        self._addresses = {f'{job} {i}': spec.task_address(job, i)
                           for job in spec.jobs for i in spec.task_indices(job)
                           if (job, i) != (resolver.task_type, resolver.task_id)}
        self._watched = [task for task in self._addresses if task.partition(' ')[0] in jobs]
        self._patience_secs, self._over = patience_secs, over
        self._heard = dict.fromkeys(self._watched, awake_clock.seconds())
        self._told = dict(self._heard)
        self._known = set()  # tasks whose identity was checked
        self._results = patience.PATIENCE.results
        self._stop = threading.Event()

    def begin(self):
        """Waits until all answer, and starts a thread; returns the event that stops it."""
        while not self._all_answer(FLAGS.patience_secs):
            time.sleep(0.1)
        _look_for_double(self._me, self._own)
        keepalive.begin()
        threading.Thread(target=self._keep_looking, daemon=True).start()
        return self._stop

    def _all_answer(self, patience_secs):
        """Returns whether all answer; ends this process if one has not for `patience_secs`."""
        if patience.PATIENCE.results > self._results:  # one is an answer of all that are watched
            self._results = patience.PATIENCE.results
            self._heard.update(dict.fromkeys(self._watched, awake_clock.seconds()))
            self._told.update(self._heard)
        return all([self._answers(task, patience_secs) for task in self._watched])

    def _answers(self, task, patience_secs):
        address = self._addresses[task]
        reason = silence(address)
        if not reason and task not in self._known:
            reason = stranger(address, task)
        if not reason:
            self._known.add(task)
            self._heard[task] = self._told[task] = awake_clock.seconds()
            return True
        self._known.discard(task)
        says = _says(task, address, reason)
        if awake_clock.seconds() - self._heard[task] > patience_secs:
            if self._over and self._over():
                console.say(self._me, f'{says}. The run is over: its last step is saved')
                os._exit(0)  # whatever the main thread waits for will not come
            console.give_up(f'{self._me}: {says}. Gave up after {patience_secs:g} s.')
        if awake_clock.seconds() - self._told[task] > _WORD_EVERY_SECS:
            self._told[task] = awake_clock.seconds()
            console.say(self._me, f'{says}; waiting')
        return False

    def _keep_looking(self):
        patience_secs = FLAGS.patience_secs if self._patience_secs is None else self._patience_secs
        before, computed, looked = awake_clock.seconds(), time.process_time(), 0
        for round_ in itertools.count(1):
            if self._stop.wait(1):
                return
            if not round_ % _ROUNDS_PER_LOOK and patience.PATIENCE.results > looked:
                looked = patience.PATIENCE.results  # a server that computes for long is slow to ask
                _look_for_double(self._me, self._own)
            answered = self._all_answer(patience_secs)
            seconds, before = awake_clock.seconds() - before, awake_clock.seconds()
            busy, computed = time.process_time() - computed, time.process_time()
            if answered and busy < _BUSY * seconds:
                patience.PATIENCE.count(seconds, FLAGS.patience_secs, self._me,
                                        lambda: _why(self._addresses))
