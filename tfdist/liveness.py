"""Is it alive: tasks that do not answer, steps that do not come back. No silent wait."""

import re
import socket
import struct
import threading
import time

from tfdist import awake, console, keepalive, patience
from tfdist.task_flags import FLAGS

_GREETING = b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n' + b'\0\0\0\4\0\0\0\0\0'  # and no settings
_HEADERS, _SETTINGS, _END_STREAM = 1, 4, 1  # kinds of frames of HTTP/2, and a flag
_MOST_FRAMES, _LONGEST_FRAME = 20, 2**14  # of an answer
LATE = 'timed out'  # what `silence` says of one who is there, or was: no answer, no refusal
_NO_SERVER = 'it is no server of TensorFlow'
_BUSY = 0.5  # of a processor: a process that has had more computes, and waits for nobody


def silence(address):
    """Returns why no task answers at `address`, a host:port; the empty string if one does."""
    try:
        with _connect(address) as connection:
            # The system accepts connections for a process that is stuck, and other programs listen
            # too. Servers of TensorFlow speak HTTP/2, which begins with settings.
            connection.sendall(_GREETING)
            answer = connection.recv(9)
        if not answer:  # so do tunnels whose other end has nobody to connect with
            return 'it closes the connection'
        return '' if answer[3:4] == bytes([_SETTINGS]) else _NO_SERVER
    except UnicodeError:
        return 'that is no name of a host'
    except socket.timeout:
        return LATE
    except OSError as error:
        return error.strerror or str(error)


def stranger(address, task):
    """Returns who answers at `address` in the place of a task; the empty string if it does itself.

    Args:
      address: string, host:port.
      task: string, such as 'ps 0'.
    """
    path = b'/tensorflow.WorkerService/GetStatus'
    # By the numbers that HTTP/2 has for headers: a POST by http, its path, host and type.
    headers = (b'\x83\x86\x04' + bytes([len(path)]) + path + b'\x01\x01x'
               + b'\x0f\x10\x10application/grpc' + b'\0\x02te\x08trailers')
    try:
        with _connect(address) as connection, connection.makefile('rb') as answer:
            connection.sendall(
                _GREETING + len(headers).to_bytes(3, 'big') + b'\1\4\0\0\0\1' + headers
                + b'\0\0\5\0\1\0\0\0\1' + bytes(5))  # an empty message
            for _ in range(_MOST_FRAMES):
                length, kind, flags = struct.unpack('>3sBB4x', answer.read(9))
                content = answer.read(min(int.from_bytes(length, 'big'), _LONGEST_FRAME))
                device = re.search(rb'/job:(\w+)/replica:0/task:(\d+)/', content)
                if device:
                    found = b' '.join(device.groups()).decode()
                    return '' if found == task else f'that is {found}'
                if kind == _HEADERS and flags & _END_STREAM:
                    return _NO_SERVER  # it knows of no such question
    except (OSError, struct.error):
        pass  # it is busy, or gone: not for that to say
    return ''


def _connect(address):
    host, _, port = address.rpartition(':')
    return socket.create_connection((host.strip('[]'), int(port)), timeout=2)


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
    known = set()  # those that were asked who they are

    def says(task, reason):
        return f'{task} at {addresses[task]} does not answer ({reason})'

    def all_answer(patience_secs):
        silent = False
        for task in watched:
            reason = silence(addresses[task])
            if not reason and task not in known:
                reason = stranger(addresses[task], task)
            (known.discard if reason else known.add)(task)
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
