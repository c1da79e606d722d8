"""Opens stdin, stdout and stderr if this process was started without them, as by `>&-`.

Otherwise the next file to be opened would take the place of one, and receive what is printed.
"""

import os
import sys

for _descriptor in range(3):
    try:
        os.fstat(_descriptor)
    except OSError:
        os.open(os.devnull, os.O_RDWR)  # gets the lowest free number: this one
sys.stdout = sys.stdout or open(1, 'w', encoding='utf-8', closefd=False)
sys.stderr = sys.stderr or open(2, 'w', encoding='utf-8', closefd=False)
