"""The settings from which the advisor chooses, and what each is simulated with."""

import collections
import math

import numpy as np
import advise_costs
from advise_folders import ALONE
import study_cases

Config = collections.namedtuple('Config', 'scheme window workers ps')
Trial = collections.namedtuple('Trial', 'config exponent')
# What is wanted: a test accuracy as soon as possible, or the best one within so many seconds.
Goal = collections.namedtuple('Goal', 'target within')
ONE = Config(ALONE, 1, 1, 0)
_ADAPTIVE = 'DiLoCo',  # whose step size does not depend on how large gradients are
# Where staleness asks for no smaller step: a replica steps by gradients of its own values, and
# DynSGD divides what is late.
_NEVER_TOO_LATE = 'AEASGD', 'AEAMSGD', 'DynSGD'
_TESTS = 25  # of a simulation as long as it is not known how long one process takes
_ENOUGH = .8, .5  # shares of a scheme's highest rate that may be enough, if they need less


class Space:
    """What may be simulated.

    Attributes:
      rows: dict by `Config` of what the clock says of it, see `advise_clock.simulate`; and the
        seconds of its start.
      alone: dict of floats, the seconds of a local step of one process, see `Costs.get`.
      batch_size: int.
      threads: int, those of one process.
      takes: float, seconds in which a core of this machine makes a local step.
      longer: float, by how many seconds each takes longer on the cluster.
      test: float, the seconds of a test.
      exponent: int, that of the best step size of one process, once it is known.
      left_out: dict by scheme of strings, why it cannot be simulated.
    """

    def __init__(self, answers, costs, goal, longer=0.):
        """Takes the parts.

        Args:
          answers: dict by scheme of what `advise_clock` answers; ALONE has that of HogWild, whose
            local steps are its own.
          costs: `advise_costs.Costs`.
          goal: `Goal`.
          longer: float, see `advise_cluster.Cluster`.
        """
        self._answers, self._goal = answers, goal
        self.rows = {
            Config(scheme, row['window'], row['workers'], row['ps']): row
            for scheme, answer in answers.items() if scheme != ALONE for row in answer['rows']}
        self.takes, self.longer = costs.get('step, 1 thread'), longer
        self.test = costs.get('test')
        self.alone = {at: costs.get('one process', at) + longer for at in ('value', 'low', 'high')}
        self.rows[ONE] = {'rate': 1 / self.alone['value'], 'staleness': 0., 'computes': 1.,
                          'flags': self._flags_of_one(), 'start': costs.get('start')}
        self.batch_size = answers[ALONE]['batch_size']
        self.threads, self.left_out = int(costs.get('threads')), {}
        self.exponent = 0

    def _flags_of_one(self):
        step = advise_costs.time(self.alone['value'])
        return {'workers': '1', 'ps': '1', 'step': step, 'latency': '0s', 'bandwidth': 'inf',
                'ps_bandwidth': 'inf', 'update': '0s'}

    def rate(self, config):
        """Returns the local steps/s of a `Config`, a float."""
        return self.rows[config]['rate']

    def start(self, config):
        """Returns how many seconds longer the first runs of a `Config` take, a float."""
        return self.rows[config].get('start', 0.)

    @property
    def local_steps(self):
        """The local steps that one process makes by default."""
        return self._answers[ALONE]['train_steps']

    def step_size(self, trial):
        """Returns the flag of a trial's step size, and its value, two strings."""
        answer = self._answers[trial.config.scheme]
        return answer['rate_flag'], f'{answer["rate"] * study_cases.FACTOR ** trial.exponent:.3g}'

    def own_flags(self, trial):
        """Returns the flags of the scheme itself, a dict of strings."""
        flag, size = self.step_size(trial)
        windows = dict.fromkeys(self._answers[trial.config.scheme]['window_flags'],
                                str(trial.config.window))
        return dict(windows if trial.config != ONE else {}, **{flag: size})

    def flags(self, trial, local_steps, seed, test_every=None):
        """Returns all flags of a simulation, a dict of strings.

        Args:
          trial: `Trial`.
          local_steps: int, of all workers together.
          seed: int.
          test_every: float, virtual seconds between two tests; None: _TESTS tests by local steps.
        """
        tests = {'test_every': advise_costs.time(test_every)} if test_every else {
            'tests': str(_TESTS)}
        return dict(self.rows[trial.config]['flags'], local_steps=str(local_steps), seed=str(seed),
                    target=str(self._goal.target or 1),
                    until_target=str(bool(self._goal.target)).lower(), **tests,
                    **self._come(trial.config, seed), **self.own_flags(trial))

    def _come(self, config, seed):
        """Returns the flag that says when each worker begins, a dict; empty if all begin at once.

        In an asynchronous scheme each but worker 0 begins at a random moment of the first run of
        worker 0. If all began at once, equal workers would push together for ever, as no real ones
        do.
        """
        if config.workers == 1 or self._answers[config.scheme]['together']:
            return {}
        run = config.window * config.workers / self.rate(config)
        moments = np.random.RandomState([seed, config.workers]).uniform(0, run, config.workers)
        return {'come': ','.join(f'{worker}:{advise_costs.time(moment)}'
                                 for worker, moment in enumerate(moments) if worker)}

    def steps_of_update(self, config):
        """Returns how many local steps of all workers there are to one global step, a float."""
        answer = self._answers[config.scheme]
        return config.window / answer['pushes'] * (config.workers if answer['together'] else 1)

    def exponents(self, config):
        """Returns the exponents of step sizes to begin with, a list of ints; the likeliest first.

        They are around that of one process: how large a step may be is mostly up to the model. The
        more gradients it is the mean of, the larger it may be; the later they are, the smaller.
        """
        answer = self._answers[config.scheme]
        if answer['rate_is_given']:
            return [0]
        if answer['averages']:
            middle = round(math.log(config.workers, study_cases.FACTOR) / 2)
        else:
            late = (0 if config.scheme in _NEVER_TOO_LATE else
                    self.rows[config].get('staleness', 0))
            middle = -round(math.log(1 + late, study_cases.FACTOR) / 2)
        likely = middle if config.scheme in (ALONE, *_ADAPTIVE) else self.exponent + middle
        likely = max(-study_cases.FARTHEST, min(study_cases.FARTHEST, likely))
        return [trial.exponent for trial in self.around(Trial(config, likely))]

    def around(self, trial):
        """Returns the trials with the next step sizes, a list that begins with the trial."""
        if self._answers[trial.config.scheme]['rate_is_given']:
            return [trial]
        return [trial] + [trial._replace(exponent=trial.exponent + more) for more in (-1, 1)
                          if abs(trial.exponent + more) <= study_cases.FARTHEST]

    def in_order(self, scheme, is_affordable=lambda config: True):
        """Returns the configs of a scheme, a list: first those that do with less for their rate.

        Before them all come those for which `is_affordable`, a function, returns True.
        """
        rates = {config: row['rate'] for config, row in self.rows.items()
                 if config.scheme == scheme}
        first = {config: rate for config, rate in rates.items() if is_affordable(config)}
        rest = {config: rate for config, rate in rates.items() if config not in first}
        return self._in_order(first) + self._in_order(rest)

    @staticmethod
    def _in_order(left):
        order, most = [], max(left.values(), default=0)
        for share in _ENOUGH:
            good = [config for config, rate in left.items()
                    if rate >= share * most and config not in order]
            if good:
                order.append(min(good, key=lambda config: (
                    config.window * config.workers, config.ps)))
        return order + sorted(set(left) - set(order), key=lambda config: (-left[config], config))
