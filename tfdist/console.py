"""How a program begins and how it fails: flags that are right, errors in one line."""

import os
import signal
import sys

from absl import app, flags

FLAGS = flags.FLAGS


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
            # Python would write the end of the line by itself, and other tasks may write meanwhile.
            os.write(2, f'{error.code}\n'.encode())
            sys.exit(1)
        raise


def say(name, text):
    """Prints a line on stdout.

    Args:
      name: string, who is speaking, for example 'worker 1'.
      text: string, what.
    """
    sys.stdout.write(f'{name}: {text}\n')  # in one piece: other processes write, too
    sys.stdout.flush()


def give_up(line):
    """Ends this process with a line, a string, on stderr and status 1, whatever its threads do.

    The main thread may be deep in the runtime, and heed no exception.
    """
    sys.stderr.write(f'{line}\n')
    sys.stderr.flush()
    os._exit(1)
