"""Faults in runs with flags that give tasks more to do: some cells of matrix.py, which has all."""

import pytest

import matrix


def test_all_cells_are_told_apart():
    found = matrix.cells()
    assert len(set(found)) == len(found) > 500
    for i, words in enumerate([matrix.STEPS, None, matrix.AWAY_SECS, matrix.FLAGS, matrix.MOMENTS]):
        assert words is None or {cell[i] for cell in found} == set(words)


@pytest.mark.thorough
@pytest.mark.usefixtures('needs_hosts')
@pytest.mark.parametrize('words', [  # each role, fault, flag and moment, and most pairs of them
    'HogWild ps-0 kill eval test',
    'HogWild worker-0 pause stop test',
    'HogWild worker-1 power average test',
    'HogWild ps-0 pause export end',
    'HogWild worker-0 kill order middle',
    'AGN ps-0 power stop test',
    'AGN worker-1 kill order start',
    'AGN worker-0 kill average end',
    'Synchronous-SGD ps-0 kill average test',
    'Synchronous-SGD worker-0 power eval middle',
    'Synchronous-SGD worker-1 pause eval test',
    'Synchronous-SGD ps-0 power export end',
    'In-Graph-Replication ps-0 kill stop test',
    'In-Graph-Replication chief-0 kill eval middle',
    'In-Graph-Replication worker-1 power eval test',
    'Model-Parallel worker-1 kill eval test',
    'Model-Parallel chief-0 pause export end'])
def test_a_cell(tmp_path, words):
    cell = matrix.Cell(*words.split())
    assert cell in matrix.cells()
    print(f'{words}: {matrix.Run(cell, tmp_path).strike():.0f} s')
