"""How a program begins and how it fails: flags that are right, errors in one line."""

import contextlib
import os
import re
import signal
import sys

from absl import app, flags

FLAGS = flags.FLAGS
_STRANGER = re.compile(r'/job:(\w+)/replica:0/task:(\d+)\S* unknown device')  # of TensorFlow's


def _parse_flags(argv):
    """Returns what is left of `argv`; ends the program in one line where absl would print three."""
    for module, defined in FLAGS.flags_by_module_dict().items():
        if module.startswith('tfdist.'):  # so that --help lists them with the program's own
            for flag in defined:
                FLAGS.register_key_flag_for_module(argv[0], flag)
    try:
        rest = FLAGS(argv)
    except flags.Error as error:
        sys.exit(f'{argv[0]}: {error} (--help lists the flags)')
    for name in FLAGS:
        value = FLAGS[name].value
        if value != value or isinstance(value, int) and abs(value) >= 2 ** 63:  # nan is not itself
            sys.exit(f'{argv[0]}: flag --{name}={value}: there is no such number here (--help '
                     'lists the flags)')
    if rest[1:]:
        sys.exit(f'{argv[0]}: what is "{rest[1]}"? Flags begin with -- (--help lists them).')
    return rest


def run(main):
    """Runs `main(argv)` when the flags are right, else says which one is not."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it at once, without a traceback
    try:
        app.run(main, flags_parser=_parse_flags)
    except SystemExit as error:
        if isinstance(error.code, str):
            _complain(error.code)
            sys.exit(1)
        raise
    except Exception as error:
        found = _STRANGER.search(str(error))
        if not found:
            raise
        give_up(f'At the address of {found[1]} {found[2]} is another task now, of this cluster or '
                'of another.')


def say(name, text):
    """Prints a line on stdout.

    Args:
      name: string, who is speaking, for example 'worker 1'.
      text: string, what.
    """
    try:
        sys.stdout.write(f'{name}: {text}\n')  # in one piece: other processes write, too
        sys.stdout.flush()
    except OSError as error:  # the disk is full, or who read it is gone: no reason to lose the run
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        _complain(f'{name}: stdout cannot be written to ({error.strerror}); training goes on, and '
                  'says nothing more')


def reason(message):
    """Returns the line of an error's message, a string, that says why: the first may say where."""
    said = re.sub(r"(?s).*\nNode: '[^\n]*\n", '', message)  # 2.21 says first in what op
    line = next((line for line in said.splitlines()
                 if re.search(r'\w', line) and not line.endswith(':')), '')
    return line if len(line) <= 200 else f'{line[:80]} ... {line[-115:]}'  # it ends with the reason


def _complain(line):
    """Writes a line on stderr, in one piece, if that can be written to."""
    with contextlib.suppress(OSError):
        os.write(2, f'{line}\n'.encode())


def give_up(line):
    """Ends this process with a line, a string, on stderr and status 1, whatever its threads do.

    The main thread may be deep in the runtime, and heed no exception.
    """
    _complain(line)
    os._exit(1)
