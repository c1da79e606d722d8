"""An early end: all workers that make each step together stop at the same one."""

import contextlib
import types
from unittest import mock

from tfdist.start import console
from tfdist.training import report, stopping

from searching import barrier_orders
from searching.protocol import must

_DECIDES_AT = 1  # the step after which the chief decides to end the run
_AHEAD = 3  # steps from there to the end: fewer than in a run, so that stories are short


class Stopping(barrier_orders.Barrier):
    """The barrier of a run that the chief ends early."""

    name = 'stopping'
    settings = [dict(workers=2, pushes=None, steps=9), dict(workers=3, pushes=2, steps=9)]
    most_lives = 2
    stops = True

    def more(self, world):
        stack = contextlib.ExitStack()
        stack.enter_context(mock.patch.object(console, 'say', lambda *_: None))
        flags = types.SimpleNamespace(train_steps=world.setting['steps'], model_dir=None,
                                      log_every_n_steps=10**9)
        stack.enter_context(mock.patch.object(report, 'FLAGS', flags))
        return stack

    def graphs(self, setting):
        with mock.patch.object(stopping, '_AHEAD', _AHEAD):
            return super().graphs(setting)

    def begin(self, world):
        world.last_step, world.stopped_at = None, {}
        super().begin(world)

    def faults(self, world):
        return [each for each in super().faults(world) if not each.startswith('crash')]

    def _steps(self, world, session, worker):
        process = world.current.process
        progress = process.progress = report.Progress(
            process.name, int(session.run(worker.all[0])), False)
        progress.end_at(int(session.run(worker.last_step.value)))
        world.stopped_at[process.name] = progress.global_step  # so far
        return progress.global_step, lambda: progress.last_step

    def _after(self, world, process, session, worker, result):
        process.progress.add(dict(result, loss=0.))
        world.stopped_at[process.name] = process.progress.global_step
        if (process.name == 'worker 0' and world.last_step is None
                and process.progress.global_step >= _DECIDES_AT):
            world.tell(process.name, f'ends the run at step {worker.last_step.write(session)}')

    def observe(self, world, agent, run, atom, given, made):
        super().observe(world, agent, run, atom, given, made)
        if atom.kind == 'LookupTableInsertV2' and atom.state.startswith('last_step@'):
            world.last_step = int(given[1])

    def at_the_end(self, world):
        must(world.steps == world.last_step, 'the run ends at another step:',
             f'{world.steps}, not {world.last_step}')
        if not world.setting['pushes']:
            must(len(set(world.stopped_at.values())) == 1, 'workers stop at different steps:',
                 f'{world.stopped_at}')
