"""Simulates a cluster on which a scheme trains: the scheme is the folder's own, time is virtual.

    python simulate.py --scheme=AGN --workers=128

Takes all flags of the folder's worker.py besides its own.
"""

import resource
import sys
import time

from absl import flags
import description
import schemes
from tfdist import building, console, directories, evaluation, training_flags

from board import Board
from clock import Clock
from crew import Crew
import lives
from player import Player
from record import Record
import replay
import shards
import timeline

FLAGS = flags.FLAGS
flags.DEFINE_string('scheme', None, 'a folder of the collection, such as AGN, or the path of one')
flags.DEFINE_string('cluster', 'ethernet', 'a file in JSON that describes the cluster, or the name '
                    'of one in the folder clusters; the flags go before what it says')
flags.DEFINE_integer('local_steps', None, 'of all workers together; in place of --train_steps',
                     lower_bound=1)
flags.DEFINE_integer('tests', 10, 'how many tests there are on the way', lower_bound=1)
flags.DEFINE_float('target', 0.95, 'test accuracy of which the time is told', lower_bound=0,
                   upper_bound=1)
flags.DEFINE_string('csv', None, 'file for the figures of each test')
flags.DEFINE_string('histogram', None, 'file for how many updates had which staleness, in CSV')
flags.DEFINE_string('board', None, 'directory for events for TensorBoard, on the virtual clock')
flags.DEFINE_string('timeline', None, 'file for a picture of who did what when, such as '
                    'timeline.png; beside it a trace is written, timeline.json')
flags.DEFINE_string('timeline_from', '0s', 'the virtual time at which it begins')
# The cluster; what these are read as, and by default, is in description.py.
flags.DEFINE_string('workers', None, 'how many there are')
flags.DEFINE_string('ps', None, 'how many parameter servers there are')
flags.DEFINE_list('step', [], 'time of a local step: 2ms, lognormal:MEAN:SIGMA, pareto:LEAST:INDEX '
                  'or trace:FILE; several by commas: the workers have them in turn')
flags.DEFINE_string('cores', None, 'how many processors all tasks share; else each has its own')
flags.DEFINE_string('exchange', None, 'time of a pull and a push together, beyond what travels; in '
                    'a ring, of its beginning and end')
flags.DEFINE_string('exchange_work', None, 'time of processors in it, where these are shared')
flags.DEFINE_string('hop', None, 'time of a hop in a ring, beyond what travels')
flags.DEFINE_string('hop_work', None, 'time of processors in it, where these are shared')
flags.DEFINE_string('parameters', None, 'size that those of the model are taken for, such as '
                    '100MB, as they travel; in equal parts on the ps')
flags.DEFINE_list('latency', [], 'of a message, one way, such as 50us; several: in turn')
flags.DEFINE_list('bandwidth', [], "of a worker's link in each direction, such as 10Gbit; several: "
                  'in turn')
flags.DEFINE_string('ps_bandwidth', None, 'of the link of a ps in each direction, which all share')
flags.DEFINE_string('update', None, 'time that the ps take for an update of the whole center')
flags.DEFINE_list('come', [], 'worker:time[,...], when it comes, or comes back')
flags.DEFINE_list('leave', [], 'worker:time[,...], when it leaves, after its round')
flags.DEFINE_list('die', [], 'worker:time[,...], when it dies, whatever it does')
flags.DEFINE_string('die_every', None, 'time after which a worker dies, again and again')
flags.DEFINE_string('back_after', None, 'time after which a worker that died so is back')


def cluster():
    """Returns the `description.Cluster` of the flags."""
    return description.Cluster(FLAGS.cluster, **{name: FLAGS[name].value
                                                 for name in description.KEYS})


def megabytes():
    """Returns the most memory that this process has had, a float."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2 ** 10


def make_player(program, number, elastic=False, of_model=shards.of_model):
    """Makes a `player.Player` of the flags.

    Args:
      program: module, the worker.py of a folder.
      number: int, how many workers there are.
      elastic: bool, whether nobody knows that.
      of_model: function of `shards` that makes the source of batches, where there are no tickets.
    """
    scheme = program.Scheme
    local_steps = scheme.local_steps(FLAGS)

    def make():
        if hasattr(program.model, 'num_examples'):
            source = shards.Tickets(program.model, FLAGS.batch_size, local_steps,
                                    FLAGS.batches_per_ticket, FLAGS.seed)
        else:
            source = of_model(
                program.model, FLAGS.batch_size, local_steps,
                [(0, 1) if elastic else (worker, number) for worker in range(number)],
                [FLAGS.seed + 1000 * worker * elastic for worker in range(number)])
        network = building.Network(program.model, source.batches, 0, scheme.with_tables)
        return network, source, evaluation.Test(program.model, network.at_variables)

    return Player(scheme, make, FLAGS, None if elastic else number, FLAGS.seed)


class Simulation:
    """A cluster that trains, whole.

    Attributes:
      clock, cluster, player, record, life, crew: its parts, see their modules.
      timeline: `timeline.Timeline`, or None.
    """

    def __init__(self, name, program, cluster):
        """Makes all of it, of the flags.

        Args:
          name: string, who is speaking.
          program: module, the worker.py of a folder.
          cluster: `description.Cluster`.
        """
        number, scheme = cluster.workers, program.Scheme
        elastic = hasattr(program, 'at_step')  # workers that come and leave, none knows how many
        self.clock, self.cluster = Clock(), cluster
        self.player = make_player(program, number, elastic)
        kind = lives.kind_of(self.player)
        train_steps = FLAGS.train_steps
        if FLAGS.local_steps:
            an_update = scheme.local_steps(FLAGS) / self.player.pushes
            train_steps = max(1, round(FLAGS.local_steps / an_update
                                       / (number if kind.together else 1)))
        at_steps = elastic and {
            what: [(worker, program.at_step(flag, worker, 0)) for worker in range(number)
                   if program.at_step(flag, worker, 0)]
            for what, flag in (('come', 'join_at'), ('leave', 'leave_at'))}
        self.timeline = timeline.Timeline(_timeline_from()) if FLAGS.timeline else None
        self._board = Board(FLAGS.board) if FLAGS.board else None
        self.record = Record(name, self.clock, train_steps, FLAGS.batch_size, self.player.test,
                             FLAGS.tests, lambda step: self.crew.reach(step), FLAGS.target,
                             self.timeline, self._board)
        delays = [training_flags.straggler_delay(worker) for worker in range(number)]
        self.life = kind(self.clock, cluster, self.player, self.record, delays, FLAGS.seed)
        self.crew = Crew(self.clock, cluster, self.life, FLAGS.seed, at_steps)

    def run(self):
        """Trains, and says what came out; returns the figures of the test."""
        self.clock.run(self.record.goes_on)
        if self.record.goes_on():
            sys.exit(f'Nothing happens after {self.clock.now:.3g} s, at step {self.record.step}: '
                     f'{self.life.stands()}.')
        return self.record.done(dict(self.life.travels.shares(), **self.life.processors.shares()))

    def write(self):
        """Writes the files that are asked for."""
        if FLAGS.csv:
            self.record.write(FLAGS.csv)
        if FLAGS.histogram:
            self.record.write_staleness(FLAGS.histogram)
        if self._board:
            self._board.close()
        if self.timeline:
            trace = self.timeline.write(FLAGS.timeline)
            console.say('timeline', f'drawn in {FLAGS.timeline}; {trace} is its trace, for '
                        'https://ui.perfetto.dev')


def _timeline_from():
    try:
        return description.seconds(FLAGS.timeline_from)
    except ValueError as error:
        sys.exit(f'--timeline_from: {error}.')


def _check_flags():
    """Ends the program if a flag is there in vain."""
    if FLAGS.order_dir:
        sys.exit('--order_dir: a real run writes its order, a simulation has no other one.')
    for name in ('until', 'look_at', 'without', 'center'):
        if FLAGS[name].present and not order:
            sys.exit(f'--{name}: that is of --replay=, which is missing.')


def _check_files():
    """Ends the program if a file that is asked for cannot be written: not after the run."""
    if FLAGS.timeline:
        timeline.check(FLAGS.timeline)
    if FLAGS.board:
        directories.make(FLAGS.board, 'board')
    for name in 'csv', 'histogram', 'timeline', 'center':
        if FLAGS[name].value:
            try:
                with open(FLAGS[name].value, 'ab'):
                    pass
            except OSError as error:
                sys.exit(f'--{name}={FLAGS[name].value}: it cannot be written '
                         f'({error.strerror}).')


def repeat():
    """Repeats the run that --replay names."""
    player = make_player(program, order.workers, of_model=shards.in_the_order_of_a_run)
    repeated = replay.Replay(player, order, FLAGS.without)
    repeated.run(FLAGS.until)
    repeated.say(order.name, FLAGS.look_at)
    if FLAGS.csv:
        repeated.write(FLAGS.csv)
    if FLAGS.center:
        repeated.write_center(FLAGS.center)
    repeated.check(order.name)


def main(_):
    if not program:
        sys.exit(f'--scheme= is missing: one of {", ".join(schemes.folders())}, or a path.')
    _check_flags()
    _check_files()
    prepare()
    if order:
        repeat()
        return
    began = time.time()
    simulation = Simulation(FLAGS.scheme, program, cluster())
    started = time.time()
    simulation.run()
    wall = time.time() - started
    simulation.write()
    console.say('simulation', f'{simulation.record.local_steps / wall:.0f} local steps/s, '
                f'{megabytes():.0f} MB, {started - began:.1f} s to begin, {wall:.1f} s')


if __name__ == '__main__':
    # Before the flags are parsed: the program has its own.
    order = replay.asked_for(sys.argv)
    if order:
        sys.argv[1:1] = order.flags
    scheme = order.folder if order else schemes.asked_for(sys.argv)
    program, prepare = schemes.load(scheme) if scheme else (None, None)
    console.run(main)
