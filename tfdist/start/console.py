"""How a program starts and how it fails: it checks its flags, and reports errors in one line."""

import contextlib
import os
import re
import signal
import sys
import traceback

from absl import app, flags
from tfdist.start import told_once
from tfdist.start.quiet import tf

FLAGS = flags.FLAGS
_NO_KERNEL = re.compile(  # TensorFlow's words
    r"No (?:registered|OpKernel was registered to support Op) '(\w+)'.*?=DT_(\w+)", re.DOTALL)
# Files whose lines tell a model's author nothing: the library's, and those of packages.
_NOT_OWN = re.compile(r'/tfdist/(?!gallery/)|/(tensorflow\w*|tf_keras|absl|_pytest|pluggy)/|'
                      r'/(contextlib|runpy|warm|find_library)\.py$|^<frozen')
_OTHER_TENSORFLOW = re.compile(  # TensorFlow's words
    r'NodeDef (?:mentions|missing) attrs? [^<]*Op<name=(\w+).*?'
    r'remote target /job:(\w+)/replica:0/task:(\d+)', re.DOTALL)
_PS = re.compile(r'/job:ps\b.*/task:(\d+)')
_ASK_FOR_SECS = 10
_STRANGER = re.compile(r'/job:(\w+)/replica:0/task:(\d+)\S* unknown device')  # TensorFlow's words


def _parse_flags(argv):
    """Returns the rest of `argv` after parsing; a mistake takes one line, not three as in absl."""
    for module, defined in FLAGS.flags_by_module_dict().items():
        if module.startswith('tfdist.'):  # so that --help lists them with the program's own flags
            for flag in defined:
                FLAGS.register_key_flag_for_module(argv[0], flag)
    try:
        rest = FLAGS(argv)
    except flags.Error as error:
        sys.exit(f'{argv[0]}: {error} (--help lists the flags)')
    for name in FLAGS:
        value = FLAGS[name].value
        if value != value or isinstance(value, int) and abs(value) >= 2 ** 63:  # nan != nan
            sys.exit(f'{argv[0]}: flag --{name}={value}: this is not a usable number (--help '
                     'lists the flags)')
    if rest[1:]:
        sys.exit(f'{argv[0]}: what is "{rest[1]}"? Flags begin with -- (--help lists them).')
    return rest


def run(main):
    """Runs `main(argv)` if the flags are valid; otherwise names the one that is not."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends the program without a traceback
    try:
        # Datasets of TensorFlow 2.21 call Python in the graph that was entered last: without this,
        # on a device that a cluster does not have.
        with told_once.failures(), tf.get_default_graph().as_default():
            app.run(main, flags_parser=_parse_flags)
    except SystemExit as error:
        if isinstance(error.code, str):
            _complain(error.code)
            sys.exit(1)
        raise
    except Exception as error:
        # Training goes on after such a failure; this one came while a session was closed.
        if isinstance(error, (tf.errors.AbortedError, tf.errors.UnavailableError)):
            give_up(f'Lost another task while this run ended ({reason(error.message)}). Start it '
                    'again: with --model_dir it goes on from the last checkpoint.')
        line = _other_tensorflow(str(error)) or _other_model(error)
        if line:
            give_up(line, status=1)
        if 'Could not start gRPC server' in str(error):  # its port was free a moment ago
            give_up('Another process has taken the port of this task meanwhile. Start it again, or '
                    'give it another port.', status=1)
        missing = _NO_KERNEL.search(str(error))
        if missing:
            give_up(f'This version of TensorFlow has no {missing[1]} for {missing[2].lower()}: use '
                    'another type in the model, such as float32.', status=1)
        found = _STRANGER.search(str(error))
        frames = own_frames(getattr(getattr(error, 'op', None), 'traceback', None) or [])
        if frames and not found:
            give_up(f'{type(error).__name__}: {reason(error.message)}\nin an operation made by:\n'
                    f'{"".join(traceback.format_list(frames)).rstrip()}', status=1)
        if not found:
            raise
        give_up('Another task, of this cluster or another, is now at the address of '
                f'{found[1]} {found[2]}.')


def _other_tensorflow(message):
    """Returns a line that says so if a task runs another TensorFlow; else the empty string."""
    found = _OTHER_TENSORFLOW.search(message)
    return found and (
        f'{found[2]} {found[3]} runs another TensorFlow than this task, which runs '
        f'{tf.__version__}: it does not know {found[1]} in this form. Give all tasks the same '
        'TensorFlow.') or ''


def _other_model(error):
    """Returns a line that names a variable with another shape on its ps; else the empty string.

    TensorFlow names only the operation that failed. So the ps is asked.
    """
    sessions = [frame.f_locals.get('self') for frame, _ in traceback.walk_tb(error.__traceback__)]
    sessions = [each for each in sessions if isinstance(each, tf.Session) and each.sess_str]
    variables = [variable for each in sessions[-1:]
                 for variable in each.graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES)
                 if _PS.search(variable.device)]
    if not variables or not isinstance(error, tf.errors.InvalidArgumentError):
        return ''
    with contextlib.suppress(tf.errors.OpError, ValueError):
        for variable, shape in zip(variables, _shapes_there(sessions[-1], variables)):
            if not variable.shape.is_compatible_with(shape):
                return (f'The variable {variable.op.name} has shape {shape.tolist()} on ps '
                        f'{_PS.search(variable.device)[1]}, and shape {variable.shape.as_list()} '
                        'in the model of this task. Give all tasks the same model and the same '
                        'flags.')
    return ''


def _shapes_there(session, variables):
    """Returns the shapes that variables have in their tasks, a list of arrays.

    Args:
      session: `tf.Session` that knows the tasks; it may be closed.
      variables: list of variables, of which each task has a value.
    """
    # The shapes are asked for, and not concluded from the graph.
    config = tf.ConfigProto()
    config.CopyFrom(session._config)
    config.graph_options.optimizer_options.opt_level = tf.OptimizerOptions.L0
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    with tf.Graph().as_default():
        shapes = []
        for there in tf.import_graph_def(
                tf.GraphDef(node=[variable.op.node_def for variable in variables]), name='',
                return_elements=[f'{variable.op.name}:0' for variable in variables]):
            with tf.device(there.device):
                ask = tf.raw_ops.VariableShape if there.dtype == tf.resource else tf.raw_ops.Shape
                shapes.append(ask(input=there))
        with tf.Session(session.sess_str, config=config) as another:
            return another.run(shapes, options=tf.RunOptions(timeout_in_ms=1000 * _ASK_FOR_SECS))


def own_frames(frames):
    """Returns `traceback.FrameSummary` of those frames that are the user's own code.

    Args:
      frames: iterable of sequences: file name, line number, name of the function.
    """
    program = os.path.abspath(sys.argv[0])
    return [traceback.FrameSummary(*frame[:3]) for frame in frames
            if os.path.abspath(frame[0]) != program
            and not _NOT_OWN.search(frame[0].replace(os.sep, '/'))]


def say(name, text):
    """Prints a line on stdout.

    Args:
      name: string, the speaker, for example 'worker 1'.
      text: string.
    """
    try:
        sys.stdout.write(f'{name}: {text}\n')  # in one piece: other processes write, too
        sys.stdout.flush()
    except OSError as error:  # disk full, or the reader is gone: no reason to lose the run
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        _complain(f'{name}: stdout cannot be written to ({error.strerror}); training goes on '
                  'silently')


def reason(message):
    """Returns the line of an error message that gives the reason; the first may give the place."""
    said = re.sub(r"(?s).*\nNode: '[^\n]*\n", '', message)  # 2.21 names the op first
    line = next((line for line in said.splitlines()
                 if re.search(r'\w', line) and not line.endswith(':')), '')
    return line if len(line) <= 200 else f'{line[:80]} ... {line[-115:]}'  # the reason comes last


def _complain(line):
    """Writes a line on stderr, in one piece, if stderr can be written to."""
    with contextlib.suppress(OSError):
        os.write(2, f'{line}\n'.encode())


def give_up(line, status=os.EX_TEMPFAIL):
    """Prints a line on stderr and exits, even if the main thread hangs in a call.

    Args:
      line: string.
      status: int. The default, 75, says that this task lost another one: with --restarts the
        launcher starts all tasks again. It does not for 1, a mistake that would come again.
    """
    if told_once.is_new(line):
        _complain(line)
    os._exit(status)
