"""Executes notebooks, each in a fresh kernel, and stores them with their outputs.

    python tests/notebooks.py                   all of Basics-Tutorial
    python tests/notebooks.py A.ipynb B.ipynb   these

Notebooks in a folder below Basics-Tutorial are one cluster: they run at the same time, and start
one after the other in the order given.
"""

import argparse
import asyncio
import itertools
import pathlib
import re
import sys
import tempfile
import time

import jupyter_client
import nbclient
import nbformat

FOLDER = pathlib.Path(__file__).resolve().parent.parent / 'Basics-Tutorial'
SECONDS = 120  # that a notebook may take
DELAY = 2  # seconds between the starts of notebooks that run at the same time
SOLUTION = re.compile(r'<details>.*?```python\n(.*?)```.*?</details>', re.DOTALL)
# Without what a kernel adds: its own version, which differs from machine to machine.
METADATA = {'kernelspec': {'display_name': 'Python 3', 'language': 'python', 'name': 'python3'},
            'language_info': {'name': 'python'}}


def notebooks(folder=FOLDER):
    """Returns the paths of all notebooks, in order."""
    return sorted(path for path in folder.rglob('*.ipynb') if '.ipynb_checkpoints' not in str(path))


def groups(paths):
    """Returns lists of paths: those in one list run at the same time."""
    def group(path):
        return path.parent if path.parent.name != FOLDER.name else path

    return [list(some) for _, some in itertools.groupby(paths, group)]


def read(path):
    """Returns a `nbformat.NotebookNode`."""
    return nbformat.read(str(path), as_version=4)


def with_solutions(notebook):
    """Returns a copy with the folded solutions of the exercises as cells, where they stand."""
    cells = []
    for cell in notebook.cells:
        cells.append(cell)
        if cell.cell_type == 'markdown':
            cells += [nbformat.v4.new_code_cell(code) for code in SOLUTION.findall(cell.source)]
    return nbformat.v4.new_notebook(cells=cells)


async def execute(path, delay=0, solutions=False):
    """Executes the notebook at `path` in its folder, and stores it."""
    await asyncio.sleep(delay)
    notebook = with_solutions(read(path)) if solutions else read(path)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        # Unix sockets: a port that is chosen before the kernel binds it may be taken by then.
        kernel = jupyter_client.AsyncKernelManager(
            kernel_name='python3', transport='ipc', ip=f'{folder}/kernel')
        client = nbclient.NotebookClient(
            notebook, km=kernel, timeout_func=lambda _: max(1, began + SECONDS - time.monotonic()),
            record_timing=False, resources={'metadata': {'path': str(path.parent)}})
        try:
            await client.async_execute()
        except (nbclient.exceptions.CellControlSignal,
                nbclient.exceptions.DeadKernelError) as error:
            sys.exit(f'{path.name}: {error}')
        finally:
            await kernel.shutdown_kernel(now=True)
    notebook.metadata = nbformat.from_dict(METADATA)
    for i, cell in enumerate(notebook.cells):
        cell['id'] = f'cell-{i}'
    nbformat.write(notebook, str(path))
    print(f'executed {path.name} in {time.monotonic() - began:.0f} s', flush=True)


async def execute_together(paths, solutions):
    """Executes the notebooks at `paths` at the same time."""
    await asyncio.gather(*[execute(path, i * DELAY, solutions) for i, path in enumerate(paths)])


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('notebooks', nargs='*', type=pathlib.Path)
    parser.add_argument('--solutions', action='store_true',
                        help='put the solutions of the exercises in as cells: for tests')
    args = parser.parse_args()
    for group in groups([path.resolve() for path in args.notebooks] or notebooks()):
        asyncio.run(execute_together(group, args.solutions))


if __name__ == '__main__':
    main()
