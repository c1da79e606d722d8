"""Stdin, stdout and stderr are there, whoever started this process: it may be without, by `>&-`.

Else the next file that is opened would be taken for one of them, and get what is printed.
"""

import os
import sys

for _descriptor in range(3):
    try:
        os.fstat(_descriptor)
    except OSError:
        os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free: this one
sys.stdout = sys.stdout or open(1, 'w', encoding='utf-8', closefd=False)
sys.stderr = sys.stderr or open(2, 'w', encoding='utf-8', closefd=False)
