"""The list of checkpoints, the file "checkpoint" in --model_dir: lost, and made again."""

import pytest
import tensorflow.compat.v1 as tf

from tfdist.training import checkpoints as library, save_lock

from processes import DID, EVALUATED, RESUMES


def _gone(directory):
    """Leaves a list whose checkpoints are elsewhere, as in a copy of a directory."""
    tf.train.update_checkpoint_state(str(directory), '/moved/model.ckpt-11',
                                     ['/moved/model.ckpt-9', '/moved/model.ckpt-11'])


LISTS = {
    'missing': lambda directory: None,
    'empty': lambda directory: (directory / 'checkpoint').write_text(''),
    'noise': lambda directory: (directory / 'checkpoint').write_bytes(b'\xff\0\xfe' * 9),
    'words': lambda directory: (directory / 'checkpoint').write_text('model.ckpt'),
    'gone': _gone,
}


def _write(directory, *names):
    """Makes empty files with such endings as those of checkpoints."""
    for name in names:
        (directory / f'model.ckpt-{name}').write_bytes(b'')


def _claim(directory):
    """Claims a directory for a moment."""
    try:
        library.claim(str(directory), 'worker 0', 'ps a:1')
    finally:
        library._LOCKS.pop().close()


@pytest.fixture
def model_dir(tmp_path):
    """A directory with two whole checkpoints, at 9 and 11; later ones lack index, data or parts."""
    directory = tmp_path / 'model'
    directory.mkdir()
    _write(directory, '9.index', '9.data-00000-of-00001',
           '11.index', '11.data-00000-of-00002', '11.data-00001-of-00002',
           '12.data-00000-of-00001', '13.index',
           '14.index', '14.data-00001-of-00002', '14.data-00000-of-00003',
           'last.index', 'last.data-00000-of-00001')
    return directory


@pytest.mark.parametrize('damage', LISTS)
def test_the_list_is_made_of_the_whole_checkpoints(model_dir, capsys, damage):
    LISTS[damage](model_dir)
    _claim(model_dir)
    state = tf.train.get_checkpoint_state(str(model_dir))
    paths = [str(model_dir / f'model.ckpt-{step}') for step in (9, 11)]
    assert list(state.all_model_checkpoint_paths) == paths
    assert state.model_checkpoint_path == paths[-1]
    line, = capsys.readouterr().out.splitlines()
    assert line == ('worker 0: ' + (
        f'/moved/model.ckpt-11 is gone, {paths[-1]} is the last one now' if damage == 'gone' else
        f'the list of checkpoints in {model_dir}, the file "checkpoint", was missing or damaged. '
        f'Made it again: {paths[-1]} is the last one'))
    _claim(model_dir)
    assert not capsys.readouterr().out, 'said once'


@pytest.mark.parametrize('damage', LISTS)
def test_nothing_to_make_it_of(tmp_path, capsys, damage):
    """A list that leads nowhere ends the program; no list at all is a new run."""
    _write(tmp_path, '12.data-00000-of-00001', '13.index')
    LISTS[damage](tmp_path)
    if damage == 'missing':
        _claim(tmp_path)
        assert not (tmp_path / 'checkpoint').exists()
    else:
        with pytest.raises(SystemExit, match='its file "checkpoint" is damaged, or names files'):
            _claim(tmp_path)
    assert not capsys.readouterr().out


def test_a_list_that_leads_somewhere_stays(model_dir, capsys):
    """Also if somebody has written there that an older one is the last one."""
    paths = [str(model_dir / f'model.ckpt-{step}') for step in (9, 11)]
    tf.train.update_checkpoint_state(str(model_dir), paths[0], paths)
    _claim(model_dir)
    assert tf.train.latest_checkpoint(str(model_dir)) == paths[0]
    assert not capsys.readouterr().out


@pytest.mark.parametrize('saving', [None, 'chief', 'stand-in'])
def test_who_only_reads_makes_no_list_while_others_save(model_dir, capsys, monkeypatch, saving):
    monkeypatch.setattr(save_lock, '_MOMENT_SECS', 0)
    lock = save_lock.SaveLock(str(model_dir), 'ps a:1')
    assert saving != 'chief' or lock.register()
    assert not saving or lock.take()
    library.check_model_dir(str(model_dir), 'evaluator')
    assert bool(capsys.readouterr().out) == (model_dir / 'checkpoint').exists() == (not saving)
    lock.close()
    again = save_lock.SaveLock(str(model_dir), 'ps a:1')
    assert again.register() and again.take(), 'it has let go'
    again.close()


@pytest.mark.thorough
@pytest.mark.parametrize('folder, env', [
    ('Non-Distributed-Setup', {}), ('HogWild', {'PS': 2}), ('Ring-AllReduce', {}),
    ('In-Graph-Replication', {}), ('Model-Parallel', {}),
    *(('Multiple-GPUs-Single-Machine', {'MODE': mode})
      for mode in ('towers', 'threads', 'workers')),
    ('Distributed-MNIST', {})])
def test_a_run_goes_on(programs, tmp_path, folder, env):
    """Each program that restores does, from what a real run has left, but for the list."""
    directory = tmp_path / 'model'
    first = programs.run_sh(folder, '--train_steps=20', f'--model_dir={directory}', **env)
    first.ends_well()
    last = tf.train.latest_checkpoint(str(directory))
    (directory / 'checkpoint').unlink()
    if folder == 'Distributed-MNIST':
        alone = programs.task('evaluator', '--train_steps=20', f'--model_dir={directory}',
                              folder=folder)
        alone.ends_well()
        assert alone.matches(EVALUATED)
        (directory / 'checkpoint').unlink()
    again = programs.run_sh(folder, '--train_steps=40', f'--model_dir={directory}', **env)
    again.ends_well()
    assert [line for line in again.out if line.endswith(f'Made it again: {last} is the last one')]
    assert {match['path'] for match in again.matches(RESUMES)} <= {last} and again.matches(DID)
    assert not any(' starts at step 0 ' in line for line in again.out)
