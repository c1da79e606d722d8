"""Simulates a cluster on which a scheme trains: the scheme is the folder's own, the time virtual.

    python simulate.py --scheme=AGN --workers=128

It also takes all flags of the folder's worker.py.
"""

import math
import resource
import sys
import time

from absl import flags
import numpy as np
from tfdist.model import building
from tfdist.start import console, directories
from tfdist.training import gantt, training_flags
from tfdist.start.quiet import tf
from clock import Clock
from crew import Crew
import description
from events import Events
import given
import halves
import lives
from player import Player
from record import Record
import replay
import replicas
import schemes
import shards
import timeline
import torn
import turns

FLAGS = flags.FLAGS
_BY_WORKER = 'straggler', 'liar', 'join_at', 'leave_at'  # flags of programs: worker:number[,...]
flags.DEFINE_string('scheme', None, 'a folder of the collection, such as AGN, or the path of one')
flags.DEFINE_string('cluster', 'ethernet', 'a file in JSON that describes the cluster, or the name '
                    'of one in the folder clusters; flags override it')
flags.DEFINE_integer('local_steps', None, 'of all workers together; in place of --train_steps',
                     lower_bound=1)
flags.DEFINE_integer('tests', 10, 'how many tests the run has: more at first', lower_bound=1)
flags.DEFINE_string('test_every', None, 'virtual time from a test, when worker 0 is between two '
                    'rounds, to the next one, at least, such as 0.1s; in place of --tests')
flags.DEFINE_float('target', 0.95, 'test accuracy whose time is printed', lower_bound=0,
                   upper_bound=1)
flags.DEFINE_boolean('until_target', False, 'end when the test accuracy has come to --target')
flags.DEFINE_string('csv', None, 'file for the figures of each test')
flags.DEFINE_string('histogram', None, 'file for how many updates had which staleness, in CSV')
flags.DEFINE_string('board', None, 'directory for events for TensorBoard, on the virtual clock')
flags.DEFINE_string('timeline_from', '0s', 'the virtual time at which the picture begins')
flags.DEFINE_float('torn', 0, 'share of the elements of each push that is lost, as where updates '
                   'without a lock overwrite each other', lower_bound=0, upper_bound=1)
flags.DEFINE_boolean('error_feedback', True, 'with --compression: without it, what a push leaves '
                     'out is lost, and not added to the next one')
flags.DEFINE_float('ps_momentum', 0, 'momentum with which the ps apply gradients, for a model '
                   'that has no optimizer', lower_bound=0, upper_bound=1)
# The cluster; description.py parses these, and has their defaults.
flags.DEFINE_string('workers', None, 'how many there are')
flags.DEFINE_string('ps', None, 'how many parameter servers there are')
flags.DEFINE_list('step', [], 'time of a local step: 2ms, lognormal:MEAN:SIGMA, '
                  'pareto:LEAST:INDEX, trace:FILE or drawn:FILE; workers take several, separated '
                  'by commas, in turn')
flags.DEFINE_string('cores', None, 'how many processors all tasks share; default: one each')
flags.DEFINE_string('exchange', None, 'time of a pull and a push together, beyond that on links; '
                    'in a ring, of its beginning and end')
flags.DEFINE_string('exchange_work', None, 'time of shared processors in an exchange')
flags.DEFINE_string('hop', None, 'time of a hop in a ring, beyond that on the links')
flags.DEFINE_string('hop_work', None, 'time of shared processors in a hop')
flags.DEFINE_string('parameters', None, 'size that the model counts as on the links, such as '
                    '100MB; in equal parts on the ps')
flags.DEFINE_list('latency', [], 'of a message, one way, such as 50us; several in turn')
flags.DEFINE_list('bandwidth', [], "of a worker's link in each direction, such as 10Gbit; several "
                  'in turn')
flags.DEFINE_string('ps_bandwidth', None, 'of the link of a ps in each direction, which all share')
flags.DEFINE_string('links', None, 'turns, or shared: whether what needs a link at a time passes '
                    'one after the other, or all at once, as with TCP')
flags.DEFINE_string('update', None, 'time that the ps take for an update of the whole center')
flags.DEFINE_list('come', [], 'worker:time[,...], when it comes, or comes back')
flags.DEFINE_list('leave', [], 'worker:time[,...], when it leaves, after its round')
flags.DEFINE_list('die', [], 'worker:time[,...], when it dies')
flags.DEFINE_string('die_every', None, 'time after which a worker dies, again and again')
flags.DEFINE_string('back_after', None, 'time after which a worker that died so is back')


def cluster():
    """Returns the `description.Cluster` of the flags."""
    return description.Cluster(FLAGS.cluster, **{name: FLAGS[name].value
                                                 for name in description.KEYS})


def megabytes():
    """Returns the peak memory of this process, a float."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2 ** 10


class Network(building.Network):
    """A network for whose updates on the ps --ps_momentum holds; see `given` for other updates."""

    def model_optimizer(self, learning_rate):
        own, momentum = super().model_optimizer(learning_rate), FLAGS.ps_momentum
        if momentum and own is not None:
            sys.exit('--ps_momentum: the model has an optimizer of its own, change that one.')
        return tf.train.MomentumOptimizer(learning_rate, momentum) if momentum else own


def make_player(program, number, elastic=False, of_model=shards.of_model):
    """Makes a `player.Player` from the flags.

    Args:
      program: module, the worker.py of a folder.
      number: int, how many workers there are.
      elastic: bool, whether the scheme itself does not know how many.
      of_model: function of `shards` that makes the source of batches of a scheme without tickets.
    """
    if hasattr(program, 'clients'):  # the module of the folder: whose examples are not a worker's
        return turns.of_program(program, FLAGS, number)
    if hasattr(program, 'pairs'):  # workers have replicas, and there is no center
        return replicas.of_program(program, FLAGS, number)
    scheme = program.Scheme
    reason = scheme.why_not_simulated(FLAGS)
    if reason:
        sys.exit(f'With these flags the scheme is not simulated: {reason}.')
    count = scheme.batches(FLAGS)

    def make():
        if hasattr(program, 'tickets'):  # the module of the folder, as its worker.py imports it
            source = shards.Tickets(program.tickets.Tickets, program.model, FLAGS.batch_size,
                                    count, FLAGS.batches_per_ticket * count, FLAGS.seed)
        else:
            source = of_model(
                program.model, FLAGS.batch_size, count,
                [(0, 1) if elastic else (worker, number) for worker in range(number)],
                [FLAGS.seed + 1000 * worker * elastic for worker in range(number)])
        network = Network(program.model, source.batches, 0, scheme.tables_stay_on_ps)
        return network, source, halves.test_of(program.model, network.at_variables)

    return Player(scheme, make, FLAGS, None if elastic else number, FLAGS.seed)


class Simulation:
    """A whole cluster that trains.

    Attributes:
      clock, cluster, player, record, life, crew: its parts, see their modules.
      timeline: `timeline.Timeline`, or None.
    """

    def __init__(self, name, program, cluster):
        """Makes its parts from the flags.

        Args:
          name: string, with which each printed line begins.
          program: module, the worker.py of a folder.
          cluster: `description.Cluster`.
        """
        number = cluster.workers
        elastic = hasattr(program, 'at_step')  # workers join and leave; no worker knows how many
        self.clock, self.cluster = Clock(), cluster
        self.player = make_player(program, number, elastic)
        if FLAGS.torn:
            if not hasattr(self.player, 'tear'):
                sys.exit('--torn: without a center nothing is pushed that could be torn.')
            self.player.tear = torn.losing(FLAGS.torn, FLAGS.seed)
        kind = lives.kind_of(self.player)
        train_steps = (self._steps_for(FLAGS.local_steps, kind) if FLAGS.local_steps
                       else FLAGS.train_steps)
        at_steps = elastic and {
            what: [(worker, program.at_step(flag, worker, 0)) for worker in range(number)
                   if program.at_step(flag, worker, 0)]
            for what, flag in (('come', 'join_at'), ('leave', 'leave_at'))}
        self.timeline = (timeline.Timeline(description.seconds(FLAGS.timeline_from))
                         if FLAGS.timeline else None)
        self._events = Events(FLAGS.board) if FLAGS.board else None
        test_every = _seconds_between_tests()
        self.record = Record(name, self.clock, train_steps, FLAGS.batch_size, self.player.test,
                             None if test_every else FLAGS.tests,
                             lambda step: self.crew.reach(step), FLAGS.target, self.timeline,
                             self._events, FLAGS.until_target, test_every)
        delays = [training_flags.straggler_delay(worker) for worker in range(number)]
        for name in _BY_WORKER:
            if name in FLAGS:
                for part in FLAGS[name].value:
                    cluster.check_worker(name, int(part.partition(':')[0]))
        self.life = kind(self.clock, cluster, self.player, self.record, delays, FLAGS.seed)
        self.crew = Crew(self.clock, cluster, self.life, FLAGS.seed, at_steps)

    def _steps_for(self, local_steps, kind):
        """Returns how many steps of the center take so many local steps of all workers, an int.

        Args:
          local_steps: int.
          kind: class of `lives`.
        """
        player, workers = self.player, self.cluster.workers
        an_update = player.scheme.local_steps_per_count(FLAGS)
        if callable(an_update):  # of the global step: how many there were before it
            steps = np.arange(1, local_steps + 2)
            with tf.Graph().as_default(), tf.Session() as session:
                before = session.run(an_update(tf.constant(steps, tf.float32)))
            counted = FLAGS.replicas_to_aggregate or workers
            return int(steps[np.searchsorted(before, local_steps * counted / workers)])
        if kind is not turns.InTurns:
            an_update = player.scheme.local_steps(FLAGS) / player.pushes
        return max(1, round(local_steps / an_update / (workers if kind.together else 1)))

    def run(self):
        """Trains and prints the results; returns the figures of the last test."""
        self.record.begin(self.cluster.words(without=self.life.network.ignores))
        self.clock.run(self.record.goes_on)
        if self.record.goes_on():
            sys.exit(f'Nothing happens after {self.clock.now:.3g} s, at step {self.record.step}: '
                     f'{self.life.stands()}.')
        return self.record.done(dict(self.life.travels.shares(), **self.life.processors.shares()),
                                self.cluster.workers, self.life.travels.most_in_line())

    def write(self):
        """Writes the files that flags name."""
        if FLAGS.csv:
            self.record.write(FLAGS.csv)
        if FLAGS.histogram:
            self.record.write_staleness(FLAGS.histogram)
        if self._events:
            self._events.close()
        if self.timeline:
            trace = self.timeline.write(FLAGS.timeline)
            console.say('timeline', f'drawn in {FLAGS.timeline}; {trace} is its trace, for '
                        'https://ui.perfetto.dev')


def _check_flags():
    """Ends the program if a flag is of something else; see also `given`."""
    if FLAGS.order_dir:
        sys.exit('--order_dir: a real run writes its order, a simulation has no other one.')
    for name in ('until', 'look_at', 'without', 'center'):
        if FLAGS[name].present and not order:
            sys.exit(f'--{name}: that is of --replay=, which is missing.')


def _seconds_between_tests():
    """Returns the virtual time between two tests, a float, or None; ends the program if bad."""
    if FLAGS.test_every is None:
        return None
    try:
        found = description.seconds(FLAGS.test_every)
    except ValueError as error:
        sys.exit(f'--test_every: {error}.')
    if not 0 < found < math.inf:
        sys.exit(f'--test_every={FLAGS.test_every}: it has to be above 0s.')
    return found


def _check_files():
    """Ends the program before the run if a file that a flag names cannot be written."""
    if FLAGS.timeline:
        gantt.check()
    try:
        description.seconds(FLAGS.timeline_from)
    except ValueError as error:
        sys.exit(f'--timeline_from: {error}.')
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
    # What the real run was given may be of use to real runs only.
    words = {word.lstrip('-').partition('=')[0] for word in order.flags}
    its_own = [name for name in FLAGS if words & {name, f'no{name}'}]
    with given.refused_in_vain('a replay', ['histogram', 'board', 'timeline', 'timeline_from'],
                               its_own):
        _check_files()
        prepare()
        player = make_player(program, order.workers, of_model=shards.in_the_order_of_a_run)
        repeated = replay.Replay(player, order, FLAGS.without)
        until, look_at = FLAGS.until, FLAGS.look_at
    repeated.run(until)
    repeated.say(order.name, look_at)
    if FLAGS.csv:
        repeated.write(FLAGS.csv)
    if FLAGS.center:
        repeated.write_center(FLAGS.center)
    repeated.check(order.name)


def main(_):
    if not program:
        sys.exit(f'--scheme= is missing: one of {", ".join(schemes.simulated())}, or a path.')
    _check_flags()
    if order:
        repeat()
        return
    ignored = []
    with given.refused_in_vain(f'a simulation of {FLAGS.scheme}', ignored):
        _check_files()
        prepare()
        began = time.time()
        simulation = Simulation(FLAGS.scheme, program, cluster())
        ignored += simulation.life.network.ignores
    started = time.time()
    simulation.run()
    wall = time.time() - started
    simulation.write()
    console.say('simulation', f'{simulation.record.local_steps / wall:.0f} local steps/s, '
                f'{megabytes():.0f} MB, {started - began:.1f} s to begin, {wall:.1f} s')


if __name__ == '__main__':
    # Before the flags are parsed, since the program defines some of them.
    order = replay.asked_for(sys.argv)
    if order:
        sys.argv[1:1] = order.flags
    scheme = order.folder if order else schemes.asked_for(sys.argv)
    program, prepare = schemes.load(scheme) if scheme else (None, None)
    console.run(main)
