"""Shows that the towers compute at the same time: draws what each of them did when in a step.

    python timeline.py                 traces some steps of towers.py; the picture is timeline.png

`build_towers` makes the towers in a loop, one after the other, but that is only how the graph is
made. When the graph runs, TensorFlow starts every operation that is ready, as long as it has a
thread. So the step is drawn twice, with a thread for each core and with a single thread.
"""

import collections
import re
import statistics
import time

from absl import flags
import matplotlib
import find_library  # noqa: F401  (finds tfdist)
from tfdist.start import console
from tfdist.training import traffic
from tfdist.start.quiet import tf
import towers

matplotlib.use('Agg')  # writes a file, without a screen
from matplotlib import pyplot as plt  # noqa: E402

FLAGS = flags.FLAGS
flags.DEFINE_string('picture', 'timeline.png', 'file for the picture')
flags.DEFINE_integer('traces', 9, 'steps to trace; the median one is drawn', lower_bound=1)
FLAGS.set_default('batch_size', 256)  # so that the towers' computing takes most of a step

_PALETTE = ['#0072b2', '#d55e00', '#009e73', '#cc79a7']
_REST = 'all others'
# Operations of a tower have its scope in their names; the variables are read outside of it.
_TOWER = re.compile(r'(tower_\d+)/')


def trace_steps(train_op, options, num_threads, count):
    """Trains in a new session, and traces some steps.

    Args:
      train_op: dict of tensors.
      options: dict of arguments for `tf.ConfigProto`.
      num_threads: int, the number of operations that can run at once; 0: one for each core.
      count: int, the number of steps to trace.

    Returns:
      List of `count` traces, each a dict of lists of `traffic.Work` by 'tower_0', 'tower_1', ...,
      and 'all others': the variables, the batches, the mean and the update.
    """
    config = tf.ConfigProto(inter_op_parallelism_threads=num_threads, use_per_session_threads=True,
                            intra_op_parallelism_threads=1, **options)
    with tf.Session(config=config) as session:
        session.run(tf.global_variables_initializer())
        session.run(tf.tables_initializer())  # initializes the batches' iterators
        for _ in range(10):  # the first steps take longer
            session.run(train_op)
        traces = []
        for _ in range(count):
            time.sleep(0.05)  # for the next batches to be made outside of the step
            metadata = tf.RunMetadata()
            session.run(train_op, options=traffic.TRACE, run_metadata=metadata)
            rows = collections.defaultdict(list)
            for work in traffic.work(metadata):
                tower = _TOWER.match(work.name)
                rows[tower.group(1) if tower else _REST].append(work)
            traces.append(rows)
    return traces


def at_once(rows):
    """Returns the time that each number of towers was at work at once.

    Args:
      rows: one of the traces of `trace_steps`.

    Returns:
      `collections.Counter`, milliseconds by the number of towers, from 1.
    """
    edges = [edge for tower in rows if tower != _REST for begin, end in _stretches(rows[tower])
             for edge in ((begin, 1), (end, -1))]
    lengths, active, last = collections.Counter(), 0, None
    for when, change in sorted(edges):
        if active:
            lengths[active] += when - last
        active, last = active + change, when
    return lengths


def _stretches(works):
    """Returns lists [begin, end] of times in which at least one of the operations ran."""
    stretches = []
    for begin, end in sorted((work.begin, work.end) for work in works):
        if stretches and begin <= stretches[-1][1]:
            stretches[-1][1] = max(end, stretches[-1][1])
        else:
            stretches.append([begin, end])
    return stretches


def share_together(rows):
    """Returns the share, 0 to 1, of the time with any tower at work in which several were."""
    lengths = at_once(rows)
    return 1 - lengths[1] / sum(lengths.values())


def in_the_middle(traces):
    """Returns the trace with the median of `share_together`."""
    return sorted(traces, key=share_together)[len(traces) // 2]


def draw(traces, path):
    """Draws traces below each other.

    Args:
      traces: dict of traces by title.
      path: string, the file.
    """
    figure, panes = plt.subplots(len(traces), sharex=True, figsize=(9, 1.9 * len(traces)), dpi=100,
                                 constrained_layout=True)
    for axes, (title, rows) in zip(panes, traces.items()):
        origin = min(work.begin for works in rows.values() for work in works)
        names = [_REST, *sorted(set(rows) - {_REST}, reverse=True)]  # from below
        labels = []
        for row, name in enumerate(names):
            devices = sorted({work.device.rpartition('/device:')[2] for work in rows[name]})
            labels.append(f'{name.replace("_", " ")}\non {", ".join(devices)}')
            colour = '#999999' if name == _REST else _PALETTE[(row - 1) % len(_PALETTE)]
            axes.broken_barh([(work.begin - origin, work.end - work.begin) for work in rows[name]],
                             (row - 0.4, 0.8), facecolor=colour, edgecolor='white', linewidth=0.3)
        axes.set(yticks=range(len(names)), yticklabels=labels, title=title)
        axes.spines[['top', 'right']].set_visible(False)
    panes[-1].set_xlabel('milliseconds since the first operation of the step')
    figure.savefig(path)


def main(_):
    devices, options, words = towers.find_devices(FLAGS.num_gpus)
    tf.set_random_seed(FLAGS.seed)
    global_step, tower_list, _ = towers.build(devices, towers.local_placement)
    with tf.device('/device:CPU:0'):
        train_op = towers.make_step(tower_list, global_step, FLAGS)
    console.say('timeline', f'{FLAGS.batch_size} examples for each tower, {words}')
    drawn = {}
    for num_threads, title in (0, 'a thread for each core'), (1, 'a single thread'):
        traces = trace_steps(train_op, options, num_threads, FLAGS.traces)
        shares = sorted(map(share_together, traces))
        median = statistics.median(shares)
        console.say('timeline', f'{title}: several towers at work in {median:.0%} of the time '
                    f'({shares[0]:.0%} to {shares[-1]:.0%} in {len(shares)} steps)')
        drawn[title] = in_the_middle(traces)
    draw(drawn, FLAGS.picture)
    console.say('timeline', f'drawn in {FLAGS.picture}')


if __name__ == '__main__':
    console.run(main)
