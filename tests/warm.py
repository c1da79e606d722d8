#!/usr/bin/env python3
"""An interpreter that has TensorFlow loaded already: each program is a fork of it.

To load TensorFlow takes a second or two of a processor, in each process of each run: about half of
what the tests take. All else is as in a process that starts: the program, the library that it finds
and its flags are loaded by the program itself. Whoever looks at how processes start, or pauses one,
takes a real interpreter. `Program.kill` asks for the program's end by SIGUSR1: killed itself, the
stand-in would be gone before the program is, which may still listen on its port.

    warm.py --serve SOCKET     loads TensorFlow, and forks until its stdin is closed
    WARM=SOCKET warm.py ...    stands in for `python ...`: its streams, its environment, its status
"""

import array
import contextlib
import ctypes
import json
import os
import selectors
import signal
import socket
import sys

_FORWARDED = {signal.SIGTERM: signal.SIGTERM, signal.SIGINT: signal.SIGINT,
              signal.SIGHUP: signal.SIGHUP, signal.SIGUSR1: signal.SIGKILL}
_SET_PARENT_DEATH_SIGNAL = 1  # of prctl(2)
_LARGEST = 2 ** 20  # bytes of a request
_INHERITED = 'TFDIST_TOLD'  # in the environment: a descriptor that the launcher hands on


def _become(request, descriptors):
    """Runs a program in this process, as `python` would: it does not return."""
    for number, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(request['cwd'])
    os.environ.clear()
    os.environ.update(request['env'])
    for descriptor in descriptors[3:]:
        os.environ[_INHERITED] = str(descriptor)
    sys.argv = request['argv']
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    import runpy
    import traceback
    status = 0
    try:
        runpy.run_path(sys.argv[0], run_name='__main__')
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
        if status and not isinstance(error.code, int):
            print(error.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = 1
    finally:
        import atexit
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _fork(connection):
    """Forks a program; returns its id, or None if who asked for it ended before it had asked."""
    size = array.array('i', [0, 0, 0, 0])
    data, ancillary, _, _ = connection.recvmsg(
        _LARGEST, socket.CMSG_SPACE(len(size) * size.itemsize))
    while not data.endswith(b'\n'):
        more = connection.recv(_LARGEST)
        if not more:
            return None
        data += more
    descriptors = array.array('i')
    for _, _, content in ancillary:
        descriptors.frombytes(content[:len(content) - len(content) % descriptors.itemsize])
    pid = os.fork()
    if not pid:
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        for number in range(3, 64):  # what the server has open, but for what was sent
            if number not in descriptors:
                try:
                    os.close(number)
                except OSError:
                    pass
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _become(json.loads(data.decode()), descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    return pid


def serve(path):
    """Loads TensorFlow, and forks programs until stdin is closed."""
    os.environ.update(TF_CPP_MIN_LOG_LEVEL='3', TF_USE_LEGACY_KERAS='1')
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 2)
    import tensorflow.compat.v1 as tf
    tf.config.experimental.list_physical_devices('GPU')
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen(64)
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    selector = selectors.DefaultSelector()
    for source in 0, server, read:
        selector.register(source, selectors.EVENT_READ)
    programs = {}  # by their connections
    print('ready', flush=True)
    while True:
        for key, _ in selector.select():
            if key.fileobj == 0:
                return
            if key.fileobj is server:
                connection, _ = server.accept()
                pid = _fork(connection)
                if pid:
                    programs[connection] = pid
                    selector.register(connection, selectors.EVENT_READ)
                else:
                    connection.close()
            elif key.fileobj == read:
                os.read(read, 4096)
            elif key.fileobj in programs:  # a signal to forward; or nobody waits for it any more
                signum = key.fileobj.recv(1)
                os.kill(programs[key.fileobj], signum[0] if signum else signal.SIGKILL)
                if not signum:
                    selector.unregister(key.fileobj)
        for connection, pid in list(programs.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del programs[connection]
                if connection in selector.get_map():
                    selector.unregister(connection)
                try:
                    connection.sendall(b'%d\n' % status)
                except OSError:
                    pass
                connection.close()


def stand_in(path):
    """Has the server run what this process was started with; ends as that does."""
    if os.path.basename(sys.argv[1]) == 'find_library.py':  # the launcher needs no TensorFlow
        os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)

    def forward(signum, _):
        with contextlib.suppress(BrokenPipeError):  # it has just ended by itself
            connection.sendall(bytes([_FORWARDED[signum]]))

    # A signal before the request would be read as the beginning of the request, and be lost.
    signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
    for signum in _FORWARDED:
        if signal.getsignal(signum) != signal.SIG_IGN:
            signal.signal(signum, forward)
    request = {'argv': sys.argv[1:], 'cwd': os.getcwd(), 'env': dict(os.environ)}
    inherited = [int(os.environ[_INHERITED])] if _INHERITED in os.environ else []
    connection.sendmsg([json.dumps(request).encode() + b'\n'], [
        (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [0, 1, 2, *inherited]))])
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
    answer = connection.makefile().readline()
    status = int(answer) if answer else signal.SIGKILL
    if os.WIFSIGNALED(status):
        if os.WTERMSIG(status) != signal.SIGKILL:  # whose action cannot be set
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status))


if __name__ == '__main__':
    if sys.argv[1] == '--serve':
        serve(sys.argv[2])
        os._exit(0)  # what still runs ends with it
    stand_in(os.environ['WARM'])
