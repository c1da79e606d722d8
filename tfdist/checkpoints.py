"""Checkpoints: directories, savers that fail in one line, a chief that undoes nobody's work."""

import glob
import os
import shutil
import sys
import time

from tfdist import console, directories, office
from tfdist.quiet import tf


def claim(model_dir, name, run=''):
    """Makes `model_dir`, a string or None, this run's own, and clears up what others left there.

    Args:
      model_dir: string or None.
      name: string, who is speaking, such as 'worker 0'.
      run: string, see `office.Office`.

    Raises:
      SystemExit: if another run has it, or see `check_model_dir`.
    """
    if not model_dir:
        return
    directories.make(model_dir, 'model_dir')
    try:
        _take_office(model_dir, name, office.Office(model_dir, run))
    except OSError as error:
        console.say(name, f'--model_dir={model_dir} cannot be locked ({error.strerror}): nothing '
                    'keeps another run from using it, too')
    _pass_over_what_is_gone(model_dir, name)
    check_model_dir(model_dir)
    for place in model_dir, os.path.join(model_dir, 'best'):  # of checkpoints that were not ended
        for part in glob.glob(os.path.join(glob.escape(place), 'model.ckpt-*_temp*')):
            shutil.rmtree(part, ignore_errors=True)


_OFFICES = []  # held until this process ends


def _take_office(model_dir, name, place):
    """Takes `place`, an `office.Office`, for good."""
    _OFFICES.append(place)
    is_chief, told = place.register(), False
    while not is_chief or not place.take():
        if not is_chief or not place.is_of_this_run():
            sys.exit(f'--model_dir={model_dir} is in use by another run. Give another one, or end '
                     'that run first.')
        if not told:
            told = True
            console.say(name, f'waits for the worker that saves in --model_dir={model_dir} now')
        time.sleep(0.05)
    place.sign()


def _pass_over_what_is_gone(model_dir, name):
    """Has the list of checkpoints end with one that is there, if the last one is not."""
    try:
        state = tf.train.get_checkpoint_state(model_dir)
        listed = list(state.all_model_checkpoint_paths) if state else []
        there = [path for path in listed if tf.train.checkpoint_exists(path)]
    except (tf.errors.OpError, ValueError):
        return
    if there and there[-1] != state.model_checkpoint_path:
        tf.train.update_checkpoint_state(model_dir, there[-1], there)
        console.say(name, f'{state.model_checkpoint_path} is gone, {there[-1]} is the last one now')


def check_model_dir(model_dir):
    """Makes `model_dir`, a string or None, if it is not there.

    Raises:
      SystemExit: if it cannot be made or written to, or its checkpoints cannot be found.
    """
    if not model_dir:
        return
    directories.make(model_dir, 'model_dir')
    try:
        found = tf.train.latest_checkpoint(model_dir)
    except (tf.errors.OpError, ValueError):
        found = None
    if not found and os.path.exists(os.path.join(model_dir, 'checkpoint')):
        sys.exit(f'--model_dir={model_dir}: its file "checkpoint" is damaged, or names files '
                 'that are not there. Mend it, or give another --model_dir.')


class Saver(tf.train.Saver):
    """A `tf.train.Saver` that says when it restores, and fails in one line."""

    def __init__(self, name, **kwargs):
        """See `tf.train.Saver`; `name` is who is speaking, such as 'worker 0'; None: nobody."""
        super().__init__(**kwargs)
        self._name = name

    def save(self, sess, save_path, *args, **kwargs):
        """See `tf.train.Saver`.

        Raises:
          SystemExit: if the checkpoint cannot be written where the parameters are.
        """
        try:
            return super().save(sess, save_path, *args, **kwargs)
        except (tf.errors.NotFoundError, tf.errors.PermissionDeniedError,
                tf.errors.ResourceExhaustedError) as error:
            sys.exit(f'The checkpoint {save_path} cannot be written '
                     f'({console.reason(error.message)}). --model_dir has to be a '
                     'directory that all tasks see, and can write to.')

    def restore(self, sess, save_path):
        """See `tf.train.Saver`.

        Raises:
          SystemExit: if the checkpoint cannot be read or is not of this model.
        """
        try:
            shapes = tf.train.load_checkpoint(save_path).get_variable_to_shape_map()
            for variable in tf.global_variables():  # TensorFlow 1.15 would take any shape
                shape = shapes.get(variable.op.name, variable.shape)
                if not variable.shape.is_compatible_with(shape):
                    raise ValueError(f'{variable.op.name} has shape {shape}')
            super().restore(sess, save_path)
        except (tf.errors.AbortedError, tf.errors.UnavailableError):
            raise  # a ps died meanwhile: the session is made anew
        except (tf.errors.OpError, ValueError) as error:
            sys.exit(f'The checkpoint {save_path} '
                     f'{_complaint(save_path, console.reason(str(error)))}')
        if self._name:
            console.say(self._name, f'resumes from {save_path}')


def _complaint(path, reason):
    """Returns what is wrong with a checkpoint that cannot be restored, and what to do."""
    if _is_whole(path):
        return f'is of another model ({reason}). Give another --model_dir, or delete it.'
    state = tf.train.get_checkpoint_state(os.path.dirname(path))
    older = next((each for each in reversed(state.all_model_checkpoint_paths if state else [])
                  if each != path and _is_whole(each)), None)
    return f'is damaged ({reason}). ' + (
        f'The next older one that is whole is {older}: to go on from there, delete {path}.*'
        if older else 'There is no older one that is whole: give another --model_dir.')


def _is_whole(path):
    """Returns whether all of a checkpoint can be read; that takes as long as to restore it."""
    try:
        reader = tf.train.load_checkpoint(path)
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)
    except (tf.errors.OpError, ValueError, LookupError, RuntimeError):  # it depends on the version
        return False
    return True


class _SaverOfLost(Saver):
    """Restores only parameters that are lost."""

    def __init__(self, name, lost):
        super().__init__(name, sharded=True)  # each ps writes its own
        self._lost = lost

    def restore(self, sess, save_path):
        if sess.run(self._lost).size:
            super().restore(sess, save_path)


def chief_scaffold(model_dir, resolver, name='worker 0'):
    """Makes the `tf.train.Scaffold` of a chief that undoes nobody's work.

    A chief that died and comes back finds the parameters alive on the ps, and the others at work on
    them. TensorFlow's own Scaffold would put the last checkpoint, or random values, in their place.

    Args:
      model_dir: string or None, where the checkpoints are.
      resolver: the chief's cluster resolver.
      name: string, who is speaking when it restores.

    Raises:
      SystemExit: if `model_dir` cannot be used.
    """
    claim(model_dir, name, office.of_run(resolver))
    lost = tf.report_uninitialized_variables(tf.global_variables())
    initialize = tf.global_variables_initializer()

    def initialize_lost(_, session):
        if session.run(lost).size:
            session.run(initialize)

    return tf.train.Scaffold(init_op=tf.no_op(), init_fn=initialize_lost,
                             saver=_SaverOfLost(name, lost))
