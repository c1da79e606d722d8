"""Checkpoints: their directory, savers that fail in one line, a chief that undoes no work."""

import contextlib
import glob
import os
import re
import shutil
import sys
import time
import types

from tfdist.start import console, directories
from tfdist.training import busy, save_lock
from tfdist.start.quiet import tf
from tensorflow.python.training import basic_session_run_hooks

# TensorFlow's timer of checkpoints goes by the time of day: if an hour is set back, for an hour
# nothing would be saved.
basic_session_run_hooks.time = types.SimpleNamespace(time=time.monotonic, sleep=time.sleep)


def claim(model_dir, name, run=''):
    """Locks `model_dir` for this run, and removes what earlier runs left unfinished there.

    Args:
      model_dir: string or None.
      name: string, the speaker, such as 'worker 0'.
      run: string, see `save_lock.SaveLock`.

    Raises:
      SystemExit: if another run uses the directory; if it cannot be made or written to, or its
        checkpoints cannot be found.
    """
    if not model_dir:
        return
    directories.make(model_dir, 'model_dir')
    try:
        _take_lock(model_dir, name, save_lock.SaveLock(model_dir, run))
    except OSError as error:
        console.say(name, f'--model_dir={model_dir} cannot be locked ({error.strerror}): nothing '
                    'keeps another run from using it, too')
    _mend_list(model_dir, name)
    _check_list(model_dir)
    for place in model_dir, os.path.join(model_dir, 'best'):  # parts of unfinished checkpoints
        for part in glob.glob(os.path.join(glob.escape(place), 'model.ckpt-*_temp*')):
            shutil.rmtree(part, ignore_errors=True)


_LOCKS = []  # held until this process ends


def _take_lock(model_dir, name, lock):
    """Takes `lock`, a `save_lock.SaveLock`, until this process ends."""
    _LOCKS.append(lock)
    is_chief, told = lock.register(), False
    while not is_chief or not lock.take():
        if not is_chief or not lock.is_of_this_run():
            sys.exit(f'--model_dir={model_dir} is in use by another run. Give another one, or end '
                     'that run first.')
        if not told:
            told = True
            console.say(name, f'waits for the worker that saves in --model_dir={model_dir} now')
        time.sleep(0.05)
    lock.sign()


def _mend_list(model_dir, name):
    """If the last checkpoint on the list is not there, makes the list of those that are."""
    if _last(model_dir):
        return
    gone, there = None, []
    with contextlib.suppress(tf.errors.OpError, ValueError):
        state = tf.train.get_checkpoint_state(model_dir)
        if state:
            gone = state.model_checkpoint_path
            there = list(filter(tf.train.checkpoint_exists, state.all_model_checkpoint_paths))
    there = there or _found(model_dir)
    if not there:
        return
    tf.train.update_checkpoint_state(model_dir, there[-1], there)
    if gone:
        console.say(name, f'{gone} is gone, {there[-1]} is the last one now')
    else:
        console.say(name, f'the list of checkpoints in {model_dir}, the file "checkpoint", was '
                    f'missing or damaged. Made it again: {there[-1]} is the last one')


def _last(model_dir):
    """Returns the path of the last checkpoint on the list; None if there is no list, or not it."""
    try:
        return tf.train.latest_checkpoint(model_dir)
    except (tf.errors.OpError, ValueError):
        return None


def newest_step(model_dir):
    """Returns the step of the last checkpoint on the list; -1 if there is none, or no directory."""
    path = model_dir and _last(model_dir)
    return int(path.rpartition('-')[2]) if path else -1


def _found(model_dir):
    """Returns the paths of the checkpoints in `model_dir` of which no file is missing, in order."""
    prefix = os.path.join(model_dir, 'model.ckpt-')
    steps = [index[len(prefix):-len('.index')]
             for index in glob.glob(f'{glob.escape(prefix)}*.index')]
    paths = [prefix + step for step in sorted(filter(str.isdigit, steps), key=int)]
    return list(filter(_has_all_files, paths))


def _has_all_files(path):
    """Returns whether all of a checkpoint's data is there, by the files' names, which count it."""
    files = glob.glob(f'{glob.escape(path)}.data-*-of-*')
    counts = {file.rpartition('-')[2] for file in files}
    return any(all(f'{path}.data-{i:05}-of-{count}' in files for i in range(int(count)))
               for count in filter(str.isdigit, counts))


def _check_list(model_dir):
    """Raises SystemExit if there is a list of checkpoints, but the last one is not there."""
    if not _last(model_dir) and os.path.exists(os.path.join(model_dir, 'checkpoint')):
        sys.exit(f'--model_dir={model_dir}: its file "checkpoint" is damaged, or names files '
                 'that are not there. Repair it, or give another --model_dir.')


def check_model_dir(model_dir, name):
    """Makes `model_dir` if it does not exist, for a program that only reads checkpoints.

    Args:
      model_dir: string.
      name: string, the speaker, such as 'evaluator'.

    Raises:
      SystemExit: if it cannot be made or written to, or its checkpoints cannot be found.
    """
    directories.make(model_dir, 'model_dir')
    lock = save_lock.SaveLock(model_dir, '')
    try:
        # Whoever saves here now makes the list itself.
        if not _last(model_dir) and _found(model_dir) and lock.register() and lock.take():
            _mend_list(model_dir, name)
    except OSError:
        pass  # no locks: somebody may be saving
    finally:
        lock.close()
    _check_list(model_dir)


class Saver(tf.train.Saver):
    """A `tf.train.Saver` that says when it restores, and fails in one line."""

    def __init__(self, name, **kwargs):
        """See `tf.train.Saver`; `name` is the speaker, such as 'worker 0', or None for silence."""
        super().__init__(**kwargs)
        self._name = name
        self._last = None
        if name:
            tf.add_to_collection(tf.GraphKeys.SAVERS, self)  # for `save`

    def save(self, sess, save_path, global_step=None, **kwargs):
        """See `tf.train.Saver`; the checkpoint of a step is written once in a session.

        Raises:
          SystemExit: if a task that has parameters cannot write the checkpoint.
        """
        if self._name and self._last == (sess, global_step):
            return self.last_checkpoints[-1]
        try:
            with busy.on_behalf_of_all(sess, 'saves'):
                path = super().save(sess, save_path, global_step, **kwargs)
            self._last = sess, global_step
            return path
        except (tf.errors.NotFoundError, tf.errors.PermissionDeniedError,
                tf.errors.ResourceExhaustedError) as error:
            sys.exit(f'The checkpoint {save_path} cannot be written '
                     f'({console.reason(error.message)}). --model_dir has to be a '
                     'directory that all tasks see, and can write to.')

    def recover_last_checkpoints(self, checkpoint_paths):
        """See `tf.train.Saver`: goes on with these checkpoints, so that old ones are deleted.

        Checkpoints that are gone do not count. If a process died while saving, it left a checkpoint
        that it was about to delete, and that is on no list: this one is deleted first.
        """
        paths = [path for path in checkpoint_paths if tf.train.checkpoint_exists(path)]
        if paths:
            prefix, _, oldest = paths[0].rpartition('-')
            steps = [re.fullmatch(r'.*-(\d+)\.index', index)
                     for index in glob.glob(f'{glob.escape(prefix)}-*.index')]
            left = sorted(int(step[1]) for step in steps if step and int(step[1]) < int(oldest))
            paths = [f'{prefix}-{step}' for step in left] + paths
            while len(paths) > (self.saver_def.max_to_keep or len(paths)):
                tf.train.remove_checkpoint(paths.pop(0))
        super().recover_last_checkpoints(paths)

    def restore(self, sess, save_path):
        """See `tf.train.Saver`.

        Raises:
          SystemExit: if the checkpoint cannot be read or is of another model.
        """
        try:
            shapes = tf.train.load_checkpoint(save_path).get_variable_to_shape_map()
            for variable in tf.global_variables():  # TensorFlow 1.15 accepts any shape
                shape = shapes.get(variable.op.name, variable.shape)
                if not variable.shape.is_compatible_with(shape):
                    raise ValueError(f'{variable.op.name} has shape {shape}')
            super().restore(sess, save_path)
        except (tf.errors.AbortedError, tf.errors.UnavailableError):
            raise  # a ps died: the worker gets a new session
        except (tf.errors.OpError, ValueError) as error:
            sys.exit(f'The checkpoint {save_path} '
                     f'{_complaint(save_path, console.reason(str(error)))}')
        if self._name:
            console.say(self._name, f'resumes from {save_path}')


def _complaint(path, reason):
    """Returns what is wrong with a checkpoint that cannot be restored, and what to do about it."""
    if _is_whole(path):
        return f'is of another model ({reason}). Give another --model_dir, or delete it.'
    state = tf.train.get_checkpoint_state(os.path.dirname(path))
    older = next((each for each in reversed(state.all_model_checkpoint_paths if state else [])
                  if each != path and _is_whole(each)), None)
    return f'is damaged ({reason}). ' + (
        f'The next older one that is whole is {older}: to go on from there, delete {path}.*'
        if older else 'There is no older one that is whole: give another --model_dir.')


def _is_whole(path):
    """Returns whether all of a checkpoint can be read, which takes as long as restoring it."""
    try:
        reader = tf.train.load_checkpoint(path)
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)
    except (tf.errors.OpError, ValueError, LookupError, RuntimeError):  # depends on the version
        return False
    return True


def save(session, model_dir, global_step):
    """Saves now what this program saves now and then: in a `tf.Session`, with its step, an int."""
    for saver in tf.get_collection(tf.GraphKeys.SAVERS):
        saver.save(session, os.path.join(model_dir, 'model.ckpt'), global_step)


class AveragesSaver(Saver):
    """After a restore, variables that have moving averages hold these, as in the chief's test."""

    def restore(self, sess, save_path):
        """See `Saver`."""
        super().restore(sess, save_path)
        reader = tf.train.load_checkpoint(save_path)
        for variable in tf.trainable_variables():
            part = variable._get_save_slice_info()  # a checkpoint keeps a variable's parts together
            name = f'{part.full_name if part else variable.op.name}/ExponentialMovingAverage'
            if reader.has_tensor(name):
                value = reader.get_tensor(name)
                if part:
                    value = value[tuple(slice(begin, begin + size) for begin, size in
                                        zip(part.var_offset, part.var_shape))]
                variable.load(value, sess)


class _SaverOfLost(Saver):
    """Restores only if parameters are lost."""

    def __init__(self, name, lost):
        super().__init__(name, sharded=True)  # each ps writes its own parameters
        self._lost = lost

    def restore(self, sess, save_path):
        if sess.run(self._lost).size:
            super().restore(sess, save_path)


def chief_scaffold(model_dir, resolver, name='worker 0'):
    """Makes the `tf.train.Scaffold` of a chief that undoes no work.

    A chief that died and comes back finds the parameters on the ps, and the other workers training
    them. TensorFlow's own Scaffold would overwrite them with a checkpoint or with random values.

    Args:
      model_dir: string or None, the directory of the checkpoints.
      resolver: the chief's cluster resolver.
      name: string, the speaker when it restores.

    Raises:
      SystemExit: if `model_dir` cannot be used.
    """
    claim(model_dir, name, save_lock.run_of(resolver))
    lost = tf.report_uninitialized_variables(tf.global_variables())
    initialize = tf.global_variables_initializer()

    def initialize_lost(_, session):
        if session.run(lost).size:
            session.run(initialize)

    return tf.train.Scaffold(init_op=tf.no_op(), init_fn=initialize_lost,
                             saver=_SaverOfLost(name, lost))
