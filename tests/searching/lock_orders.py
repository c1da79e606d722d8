"""The lock on a --model_dir: a chief, a second one, and those that stand in for it."""

import contextlib
import fcntl
import os
import shutil
import tempfile
import types
from unittest import mock

from tfdist.cluster import awake_clock, liveness
from tfdist.start import console
from tfdist.training import checkpoints, chief, save_lock
from tfdist.start.quiet import tf

from searching import protocol
from searching.protocol import must

_SAVES = 2  # of a chief
_PATIENCE_SECS = 300
_RUN = 'the run'
_CHIEFS = 'worker 0', 'worker 0 twice'


class Lock(protocol.Protocol):
    """Who saves: the chief, or a worker that stands in for it."""

    name = 'lock'
    settings = [dict(workers=2), dict(workers=3)]
    modules = (checkpoints, save_lock, chief, awake_clock)
    may_be_killed = True

    def graphs(self, setting):
        return {}

    def tasks(self, world):
        return super().tasks(world) + ['worker 0 twice']

    @contextlib.contextmanager
    def more(self, world):
        directory = tempfile.mkdtemp()
        saver = types.SimpleNamespace(save=lambda *_: self._save(world),
                                      recover_last_checkpoints=lambda _: None)
        flags = types.SimpleNamespace(model_dir=directory, save_checkpoint_secs=1,
                                      patience_secs=_PATIENCE_SECS)
        resolver = types.SimpleNamespace(task_type='worker', task_id=1)
        world.make_role = lambda: chief.Role(resolver, types.SimpleNamespace(is_chief=False))
        world.directory, world.saving, world.is_signed = directory, None, False
        real = save_lock.SaveLock
        try:
            with contextlib.ExitStack() as stack:
                for place, name, value in (
                        (save_lock, 'fcntl', _Files(world)), (chief, 'FLAGS', flags),
                        (liveness, 'FLAGS', flags),
                        (save_lock, 'run_of', lambda _: _RUN),
                        (save_lock, 'SaveLock', lambda *args: self._lock(world, real(*args))),
                        (checkpoints, 'Saver', lambda *_, **__: saver),
                        (console, 'say', lambda who, what: world.tell(
                            world.current.name, f'says "{what}"'))):
                    stack.enter_context(mock.patch.object(place, name, value))
                stack.enter_context(tf.Graph().as_default())
                yield
        finally:
            shutil.rmtree(directory)

    @staticmethod
    def _lock(world, lock):
        """Keeps a lock as its process's, whose files are closed when that ends."""
        process = world.current.process
        process.locks = getattr(process, 'locks', []) + [lock]
        return lock

    def gone(self, world, process):
        for lock in getattr(process, 'locks', []):
            while lock._files:
                lock._files.popitem()[1].close()
        if world.saving is process:
            world.saving = None

    def body(self, world, process):
        if process.name in _CHIEFS:
            self._be_chief(world, process)
            return
        while not world.is_signed:
            world.sleep(1)
        role = world.make_role()
        role.begin()
        role.after_create_session(None, None)
        while any(not each.is_done for name, each in world.processes.items() if name in _CHIEFS):
            world.sleep(1)

    def _be_chief(self, world, process):
        """What a chief does with the lock; a second one ends if there is a first."""
        try:
            checkpoints._take_lock(world.directory, process.name,
                                   save_lock.SaveLock(world.directory, _RUN))
        except SystemExit:
            world.tell(process.name, 'finds another chief')
            return
        finally:
            del checkpoints._LOCKS[:]
        world.is_signed = True
        for _ in range(_SAVES):
            self._save(world)
            world.sleep(1)

    @staticmethod
    def _save(world):
        process = world.current.process
        must(not world.saving, 'two save at once:',
             f'{process.name} and {world.saving and world.saving.name}')
        world.saving = process
        world.tell(process.name, 'begins to save')
        world.current.pause()
        world.saving = None
        world.tell(process.name, 'has saved')


class _Files:
    """Stands for the module fcntl: before a file is locked, others may come first.

    The system's own locks would hang on for a moment when a test beside this one forks.
    """

    LOCK_EX, LOCK_NB = fcntl.LOCK_EX, fcntl.LOCK_NB

    def __init__(self, world):
        self._world, self._locked = world, {}

    def flock(self, file, operation):
        must(operation == self.LOCK_EX | self.LOCK_NB, 'another operation:', f'{operation}')
        self._world.current.pause()
        inode = os.fstat(file.fileno()).st_ino  # the same name may be another file
        holder = self._locked.get(inode, file)
        if holder is not file and not holder.closed:
            raise BlockingIOError()
        self._locked[inode] = file
