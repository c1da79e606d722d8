"""The seam: what a training scheme shows of itself, to the program that trains and to all others.

A scheme is made of parts by what travels. Training runs them all at once. Tests and simulations run
them one by one, and feed what they fetched earlier in its place:

    pulled = session.run(scheme.pull)
    pushed, figures = session.run([scheme.pushed, scheme.computed], feed(scheme.pull, pulled))
    session.run(scheme.push, feed(scheme.pull + scheme.pushed, pulled + pushed))

Where all workers take a step together, each one's push is stamped with the step that it pulled, and
then the step is completed for all:

    stamps = [pulled[0]] * len(scheme.stamps)
    session.run(scheme.push, feed(scheme.pushed + scheme.stamps, pushed + stamps))
    session.run(scheme.complete)

One scheme in one session can play any number of workers so: what is one worker's alone is in what
is fed, and in `own`, to be read after each of these runs and put back before the next.
"""

from tfdist import order, runs
from tfdist.quiet import tf


def feed(tensors, values):
    """Returns a feed for `tf.Session.run`: each of a list of tensors has one of the values."""
    return dict(zip(tensors, values))


class Seam:
    """The parts of a scheme, as one worker has them. The class `Scheme` of each folder is one.

    There are no flags, no cluster and no files in it.

    Attributes:
      pull: list of tensors, the global step and the variables' values as read.
      pushed: list of tensors, what this worker pushes. It depends on `pull` and on `own`.
      computed: dict of float32 scalar tensors, the means over the batches of the figures 'loss' and
        the model's metrics. To run it brings `own` up to date, unless the push does.
      push: dict of tensors, which makes the update with `pushed`, and says its figures. Of what
        this worker computes it depends on nothing else.
      stamps: list of integer scalar tensors, the step that each part of a push is stamped with;
        empty where it is not.
      complete: tensor that completes a step for all, with what they pushed; it blocks until enough
        have. None where each push is an update by itself.
      finish: dict of tensors in place of `push` for training, which waits until the step is
        complete; None if there is nothing to wait for.
      own: list of `tf.Variable`, what this worker keeps from one run to the next.
      train_op: dict of tensors to run again and again, all parts at once: 'global_step' after the
        run's update, those of `computed`, and other figures. These are 'staleness' of each update,
        how many others came between its pull and its push, or 'dropped', the share of its pushes
        that came too late to count.
      exchanges: list of `runs.Pull` and `runs.Push`, those of a run in order: one of each, or more.
      hooks: list of `tf.train.SessionRunHook` that the scheme needs.
      with_tables: bool, whether the scheme can leave a table on the ps, and read rows of it. If it
        cannot, each worker has all of it.
    """

    complete = finish = None
    with_tables = True

    @staticmethod
    def local_steps(hparams):
        """Returns how many local steps, each on a fresh batch, one run of `train_op` makes."""
        return getattr(hparams, 'communication_window', 1)

    @staticmethod
    def worker_device(task_index):
        """Returns the device of a worker, for what is to be there whatever the scope says."""
        return f'/job:worker/task:{task_index}'

    def __init__(self, network, global_step, hparams, task_index, num_workers):
        """Makes the ops.

        Args:
          network: `building.Network` or `toy.Problem`, what is trained.
          global_step: integer `tf.Variable`, counts updates of the center.
          hparams: object with the scheme's hyperparameters as attributes, named as its flags;
            with an `order_dir` the order of its runs is recorded, see `order`.
          task_index: int, which worker this is.
          num_workers: int, how many there are.
        """
        self.stamps, self.own, self.hooks = [], [], []
        self.make(network, global_step, hparams, task_index, num_workers)
        network.finish()
        if network.state:
            self._with_state(network.state, global_step)
        if network.averages and self.complete is None:
            self.push['global_step'] = network.averages.follow(self.push['global_step'])
        self.exchanges = runs.exchanges(self, self.local_steps(hparams))
        self.train_op = dict(self.computed, **(self.finish or self.push))
        if getattr(hparams, 'order_dir', None):
            self.hooks = [*self.hooks, order.Recorder(self, global_step, hparams, task_index,
                                                      num_workers)]

    def make(self, network, global_step, hparams, task_index, num_workers):
        """Makes the parts of a scheme; the arguments are those of the constructor."""
        raise NotImplementedError

    def _with_state(self, state, global_step):
        """Adds what the model itself assigns to, unless `make` has seen to it."""
        if not state.pushed:
            with tf.control_dependencies([state.push()]):
                with tf.device(global_step.device):
                    self.push['global_step'] = tf.identity(self.push['global_step'])
        self.pull = self.pull + state.pull
        self.pushed = self.pushed + state.pushed

    def wait(self):
        """Returns when this worker may begin its next run: at once, where nothing holds it."""
