"""The language model that carries its state: streams go on; the state stays on the worker."""

import importlib

from absl import flags
from absl.testing import flagsaver
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from processes import TEST

FLAGS = flags.FLAGS
model = importlib.import_module('tfdist.gallery.stateful_lstm')
SHARDS, STREAMS = 2, 3


@pytest.fixture
def windows(tmp_path):
    """The windows to train on of ten small files of random letters; and a graph."""
    FLAGS.mark_as_parsed()
    random = np.random.RandomState(0)
    for i in range(10):
        (tmp_path / f'{i}.py').write_bytes(bytes(random.randint(97, 123, size=301).tolist()))
    with flagsaver.flagsaver(data_dir=str(tmp_path)), tf.Graph().as_default():
        yield model.lstm.windows()[0]


@pytest.mark.parametrize('shard, count', [(0, 1), (1, 4)])
def test_streams_go_on(windows, shard, count):
    """Each stream of a shard is a stretch of the text, window by window, round and round."""
    batches = model.train_batches(STREAMS, count, shard, SHARDS)
    with tf.Session() as session:
        session.run(tf.tables_initializer())
        drawn = [batch for _ in range(24 // count) for batch in session.run(batches)]
    known = {window[:-1].tobytes(): i for i, window in enumerate(windows.astype(np.int64))}
    where = np.array([[known[row.tobytes()] for row in characters] for characters, _ in drawn])
    length = len(windows) // (SHARDS * STREAMS)
    assert 1 < length < len(drawn)
    assert set(np.diff(where, axis=0).ravel()) == {1, 1 - length}
    stretches = {(shard * STREAMS + i) * length + k for i in range(STREAMS) for k in range(length)}
    assert set(where.ravel()) == stretches
    for characters, next_ones in drawn:
        assert (characters[:, 1:] == next_ones[:, :-1]).all()


@pytest.mark.usefixtures('windows')
def test_too_little_text():
    with pytest.raises(SystemExit, match='too few for 2 workers with 50 streams each'):
        model.train_batches(50, 1, 0, 2)


@pytest.mark.thorough
def test_two_workers_learn_what_one_process_learns(programs):
    """Each carries its own state: 0.476 and, in six runs, 0.489 to 0.499 when written."""
    runs = [programs.run_sh(folder, '--model=stateful_lstm', '--lstm_characters=400000')
            for folder in ('Non-Distributed-Setup', 'HogWild')]
    for run in runs:
        run.ends_well()
    one, two = (float(run.wait_for(TEST)['accuracy']) for run in runs)
    assert one > 0.4 and two == pytest.approx(one, abs=0.04)
