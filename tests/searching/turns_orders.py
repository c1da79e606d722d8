"""Two barriers, each of a variable of its own, that make the steps in turn."""

from tfdist.synchronous import stamps

from searching import barrier_orders


class Worker(barrier_orders.Worker):
    """The graph of a worker with two barriers."""

    def _make_barriers(self, gradients, hparams, task_index, num_workers):
        self.barriers = [
            self._barrier([gradient], [variable], hparams, task_index, num_workers,
                          turn=stamps.Turn(i, 2, self.variables))
            for i, (gradient, variable) in enumerate(zip(gradients, self.variables))]
        self.barrier = self.barriers[0]


class Turns(barrier_orders.Barrier):
    """All workers' pushes make a step, of the variable whose turn it is."""

    name = 'turns'
    settings = [dict(workers=2, pushes=None, steps=4), dict(workers=3, pushes=None, steps=3)]

    def make_worker(self, task_index, setting):
        return Worker(task_index, setting, self.stops)

    def _train_op(self, worker, step):
        return worker.barriers[step % 2].finish

    def _in_step(self, number):
        return [number % 2]
