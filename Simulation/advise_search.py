"""The search: schemes, windows, workers and ps by the clock alone, then by successive halving.

What cannot be fast enough goes first: even if each of its local steps were worth OPTIMISM of one
process, that one would be there earlier. The others are simulated with gradients, shortly at first
and with a few step sizes. In each of RUNGS the better ones go on, for longer; so do their
neighbours, for as long as there is time. At the end all that may be the best gets other seeds: what
looks best after one simulation each was mostly lucky. Then the best one of each scheme does.
"""

import collections
import itertools
import math
import statistics
import sys
import threading
import time

from advise_folders import ALONE
from advise_measure import TESTED_SHARE
from advise_space import ONE, Trial

OPTIMISM = 3
# A share of the time; how far to simulate: by the virtual time that one process takes to the
# target, and by the local steps that it takes, whichever is less.
Rung = collections.namedtuple('Rung', 'share horizon steps')
RUNGS = Rung(.3, 1, 1.5), Rung(.25, 2, 3), Rung(.2, 3, 6)
_OF_ONE, _OF_A_ROUND = .15, .1  # shares of the time, the second one at most
# Whose time is at most so many times that of the best gets so many seeds, if there is time.
_MAY_BE_BEST = (1.3, 3), (1.1, 5)
_AT_LAST = (1.1, 10), (1.05, 20)  # with the time that is left in the end
_OF_EACH_SCHEME = 3  # seeds of its best setting
_UNTIL = .65, .9  # shares of the time after which only other seeds are simulated
_FAR = 2  # times the time of the best: where others are given up
_AT_A_TIME = 10  # settings that are tried before the best ones are looked at again
BEST = 5  # how many are answered
_FEW = 2  # how many are simulated in a rung, at least, as long as none comes to the target
_MANY = 8  # workers; more of them get more local steps, so that each of them makes some
_MUCH_FASTER = 2  # times the rate of _MANY workers
_FEWEST, _MOST = 10, 50  # tests in the time of one process to the target
_LEADERS, _LIKE_IT = 3, 2  # of so many schemes, so many settings like the best one are tried next
_START = 1.  # seconds of a simulation besides its local steps, at least
_ROUND = 0.0002  # seconds in a local step besides the model
_PROCESS = 2.  # seconds until the process for a scheme has begun
_DIVERGED = 2  # see `worth`
_IN_ANY_CASE = 2  # a share of the time that is never over
_MORE = 2  # times the local steps to the target, at most, for other seeds
_LATE = 4  # so where a seed did not come there with _MORE


def worth(row, rung=0, start=0.):
    """Returns how good a row is, a tuple, less for a better one; longer simulations first.

    The `start` is in seconds, before the row's own.
    """
    if str(row['diverged']) == '1' or str(row['loss']) in ('', 'nan', 'inf'):
        return _DIVERGED, 0., 0., 0.
    if row['target_seconds'] != '':
        return 0, start + float(row['target_seconds']), 0., 0.
    return 1, -rung, -float(row['accuracy'] or 0), float(row['loss'])


def _first_of_each(trials):
    """Returns the first trial of each scheme, a list in their order."""
    found = collections.OrderedDict()
    for trial in trials:
        found.setdefault(trial.config.scheme, trial)
    return list(found.values())


class Search:
    """Searches.

    Attributes:
      found: dict by `Trial` of dicts by seed of pairs: a row, and the number of its rung.
      too_slow: list of `advise_space.Config` that the clock rules out.
      too_long: set of those of which even a round takes too long to simulate.
      number: int, how many simulations it had.
      is_stopped: bool, whether it was stopped, or had no time for other seeds of the best one.
    """

    def __init__(self, space, simulations, goal, seconds, jobs, then=lambda: None):
        """Takes the parts.

        Args:
          space: `advise_space.Space`.
          simulations: `advise_simulations.Simulations`.
          goal: `advise_space.Goal`.
          seconds: float, for the whole search.
          jobs: int, how many simulations are made at a time.
          then: function to call after each simulation.
        """
        self._space, self._simulations, self._goal = space, simulations, goal
        self._seconds, self._wall, self._then = seconds * jobs, seconds, then
        self._deadline = simulations.deadline
        # Seconds that a local step takes to simulate, and a simulation besides.
        self._cost, self._fixed = _ROUND + space.takes, _START
        self.found, self.is_stopped = collections.defaultdict(dict), False
        self.too_slow, self.too_long, self.number = [], set(), 0
        self._steps = collections.Counter()  # the local steps of the first seed, by trial
        self._lock, self._test_every = threading.RLock(), None

    def run(self):
        """Searches until it is done, time is up, or Ctrl-C stops it."""
        try:
            self._try_one_process()
            trials = self._halve()
            self._finish()
            for until in _UNTIL:
                trials = self._go_on(trials, until)
                self._make_sure(_MAY_BE_BEST, _UNTIL[-1])
                self._repeat()
            self._make_sure(_MAY_BE_BEST + _AT_LAST)
            self.is_stopped = any(len(self.found[trial]) < _OF_EACH_SCHEME
                                  for trial in self.best()[:1])
        except KeyboardInterrupt:
            self.is_stopped = True
            self._simulations.stop()

    def _left(self, until):
        """Returns what share of the time is left until a share of it is over, or less than 0."""
        return until - 1 + (self._deadline - time.monotonic()) / self._wall

    def _afford(self, share, number):
        """Returns how many local steps each of so many simulations can have, an int.

        The `share` is of the time of the search.
        """
        # At least as many as take half of the time in which a simulation begins.
        return int(max(20, (self._seconds * share / number - self._fixed) / self._cost,
                       self._fixed / self._cost / 2))

    def _simulate(self, trials, local_steps, share, rung=0, seed=1):
        """Simulates.

        Args:
          trials: list of `Trial`.
          local_steps: function of a trial that returns how many, a number.
          share: float, of the time of the search, after which none begins.
          rung: int, how far they go.
          seed: int.
        """
        asked = []
        for trial in trials:
            least = trial.config.window * trial.config.workers  # a round of each worker
            if least > self._afford(_OF_A_ROUND, 1):
                self.too_long.add(trial.config)
                continue
            flags = self._space.flags(trial, max(least, math.ceil(local_steps(trial))), seed,
                                      self._test_every)
            asked.append((trial, trial.config.scheme, flags))

        def keep(trial, row):
            if not self._goal.target:  # when it comes to 1 is not what is asked
                row = dict(row, target_seconds='', target_examples='')
            with self._lock:
                self.found[trial][seed] = row, rung
                self.number += 1
                if seed == 1:
                    self._steps[trial] = int(row['examples']) / self._space.batch_size
                self._then()

        self._simulations.run(asked, keep, self._deadline - (1 - share) * self._wall)

    def worth(self, trial):
        """Returns how good a trial is, see `worth`: its mean over the seeds if they end alike."""
        start = self._space.start(trial.config)
        each = [worth(*its, start) for _, its in sorted(self.found[trial].items())]
        (kind, rung, *_), *others = each
        if any(other[0] != kind for other in others):
            return max(each)
        _, seconds, accuracy, loss = (sum(values) / len(each) for values in zip(*each))
        return (kind, rung, accuracy, loss) if kind else (kind, seconds, accuracy, loss)

    def _best_of(self, trials):
        return min(trials, key=self.worth)

    def ranked(self):
        """Returns a list of trials, the best step size of each `Config`, the best ones first."""
        configs = collections.defaultdict(list)
        for trial, rows in self.found.items():
            if 1 in rows:
                configs[trial.config].append(trial)
        return sorted(map(self._best_of, configs.values()), key=self.worth)

    def untried(self):
        """Returns the list of each `Config` that was neither simulated nor ruled out."""
        tried = {trial.config for trial in self.ranked()}
        return [config for config in self._space.rows
                if config not in tried and config not in self.too_slow]

    def _try_one_process(self):
        """Tries step sizes with one process, and sets how far the others are simulated."""
        rate = self._space.rate(ONE)
        steps = self._afford(_OF_ONE, 3)
        steps = min(steps, rate * self._goal.within if self._goal.within else
                    self._space.local_steps)
        trials = [Trial(ONE, exponent) for exponent in self._space.exponents(ONE)]
        while trials:
            # The first ones in any case: all that follows depends on them.
            self._simulate(trials, lambda _: steps, _OF_ONE if self.found else _IN_ANY_CASE)
            known = [trial for trial in self.found if trial.config == ONE]
            if not known:
                break
            trials = [trial for trial in self._space.around(self._best_of(known))
                      if trial not in self.found]
            if time.monotonic() > self._deadline - (1 - _OF_ONE) * self._wall:
                break
        self._learn_cost()
        best = self._of_one()
        if (best and self._goal.target and self.worth(best)[0] != _DIVERGED
                and self.found[best][1][0]['accuracy'] == ''):
            sys.exit("The model's test has no accuracy: ask for the least loss within a time, such "
                     'as --within=10.')
        self._least = max(steps, self._fixed / self._cost / 2)
        self._set_horizon()
        if best:
            reached = self.found[best][1][0]['target_seconds']
            self._set_tests(float(reached) if reached else self._horizon)
            late = 0, _MAY_BE_BEST[0][0] * self._soonest()
            near = [trial for trial in self.found if self.worth(trial) < late] or [best]
            self._simulate(near, self._steps.get, _IN_ANY_CASE)  # tested as all are from now on
            # Its seeds take little time, and show whether its step size was the best by luck.
            self._make_sure(_MAY_BE_BEST, _OF_ONE)
            self._space.exponent = self._of_one().exponent

    def _set_tests(self, seconds):
        """Sets how often simulations are tested from now on: as the chief of a real run tests.

        The moment at which an accuracy is first seen depends on how often one looks.

        Args:
          seconds: float, the virtual ones that one process takes to the target, or all there are.
        """
        self._test_every = min(seconds / _FEWEST,
                               max(self._space.test / TESTED_SHARE, seconds / _MOST))

    def _learn_cost(self):
        """Sets what a simulation takes besides its local steps, such as its tests."""
        took = [float(rows[1][0].get('wall_seconds') or 0) - self._cost * self._steps[trial]
                for trial, rows in self.found.items() if 1 in rows]
        self._fixed = max(_START, statistics.median(took or [0.]))

    def _of_one(self):
        """Returns the best trial of one process, or None."""
        return next((trial for trial in self.ranked() if trial.config == ONE), None)

    def _set_horizon(self):
        """Sets how far the others are simulated, by what is known of one process."""
        best, self._needed = self._of_one(), self._least
        if best:
            reached = self.found[best][1][0]['target_examples']
            # Where it takes longer to begin a simulation than to make it, it may as well be longer.
            self._needed = max(self._fixed / self._cost / 2, float(reached) / self._space.batch_size
                               if reached else max(self._least, self._steps[best]))
        self._horizon = self._goal.within or self._needed / self._space.rate(ONE)

    def _possible(self):
        """Returns the schemes that may be fast enough, in the order of their rates."""
        rates = {}
        for config in list(self._space.rows):
            if config == ONE:
                continue
            if OPTIMISM * self._space.rate(config) < self._space.rate(ONE):
                self.too_slow.append(config)
            rates[config.scheme] = max(rates.get(config.scheme, 0), self._space.rate(config))
        order = sorted(rates, key=lambda scheme: -rates[scheme])
        slow = {config.scheme for config in self.too_slow} - {
            config.scheme for config in self._space.rows if config not in self.too_slow}
        possible = [scheme for scheme in order if scheme not in slow]
        # A few are simulated in any case, so that there is something to compare with.
        return possible + [scheme for scheme in order if scheme in slow][
            :max(0, BEST - 1 - len(possible))]

    def _first(self):
        """Returns the trials of the first rung, and whose turn it is if there is time left."""
        orders = [self._affordable_first(scheme) for scheme in self._possible()]
        found = []
        for place in range(max(map(len, orders), default=0)):
            configs = [order[place] for order in orders if place < len(order)
                       and (place == 0 or order[place] not in self.too_slow)]
            # One step size of each scheme before others of any.
            for some in itertools.zip_longest(*map(self._space.exponents, configs)):
                found += [Trial(config, exponent) for config, exponent in zip(configs, some)
                          if exponent is not None]
        return found

    def _affordable_first(self, scheme):
        """Returns as `Space.in_order`: first those with which there is time to see where they end.

        A worker of several makes as many local steps as one process, or some times less. Of many
        workers a few simulations have to come to the end of the last rung; and as each takes
        several times as long as one of _MANY, these workers have to be much faster.
        """
        steps, last = self._afford(RUNGS[0].share, BEST), RUNGS[-1]
        most = self._afford(last.share, _FEW)
        fast = _MUCH_FASTER * max((row['rate'] for config, row in self._space.rows.items()
                                   if config.scheme == scheme and config.workers <= _MANY),
                                  default=0)
        return self._space.in_order(scheme, lambda config: (
            config.workers * self._needed <= OPTIMISM * steps
            and (config.workers <= _MANY or self._enough(config, last) <= most
                 and self._space.rate(config) >= fast)))

    def _halve(self):
        """Simulates what is in RUNGS; returns trials that may be next, the likeliest first."""
        trials = self._all = self._first()
        fastest = max((self._space.rate(trial.config) for trial in trials), default=1)
        # Where nothing is as fast as one process, all are simulated to when they may be there.
        self._longer = max(1, self._space.rate(ONE) / fastest) if self._goal.target else 1
        over = _OF_ONE
        for number, rung in enumerate(RUNGS):
            over += rung.share
            self._set_horizon()
            few = number and self._goal.target and not self._is_there()
            left = self._affordable(self._not_there(trials), rung, _FEW if few else BEST)
            if number:  # as far as the others
                left += self._not_there(filter(None, [self._of_one()]))
            if not left:
                break
            steps = {trial: each for trial, each in self._lengths(left, rung).items()
                     if each > self._steps[trial]}
            if not number:  # something to compare with
                self._simulate(list(steps)[:1], steps.get, _IN_ANY_CASE)
            self._simulate([trial for trial in steps if trial not in self.found or number],
                           steps.get, over, number)
            trials = self._next(trials)
        return trials

    def _lengths(self, trials, rung):
        """Returns how many local steps trials are simulated for in a rung, a dict of floats."""
        # Whoever is much later is of no interest.
        horizon = self._goal.within or self._longer * min(
            self._horizon * rung.horizon, _FAR * self._soonest())
        wanted = {trial: self._space.rate(trial.config) * horizon for trial in trials}
        if not self._goal.within:
            wanted = {trial: min(steps, self._enough(trial.config, rung))
                      for trial, steps in wanted.items()}
        # Where there is no time for all of that, all get the same share of it.
        share = min(1, self._afford(rung.share, len(wanted)) * len(wanted)
                    / sum(wanted.values()))
        return {trial: share * each for trial, each in wanted.items()}

    def _soonest(self):
        """Returns the seconds of the best trial, a float; infinite if none came to the target."""
        kind, seconds, *_ = min(map(self.worth, self.ranked()), default=(1, 0.))
        return math.inf if kind else seconds

    def _finish(self):
        """Simulates on, the most accurate first, what had no time to show whether it is sooner."""
        if not self._goal.target:
            return
        soonest = self._soonest()
        rung = RUNGS[-1]._replace(share=self._left(_UNTIL[-1]))
        short = [trial for trial in self.found if self._is_cut_short(trial, soonest)]
        some = self._affordable(sorted(short, key=self.worth), rung, 1)
        if some:
            self._simulate_on(some, rung, _UNTIL[-1])

    def _simulate_on(self, trials, rung, until):
        """Simulates those of a list of trials that are not yet as far as a `Rung` wants.

        Args:
          trials: list of `Trial`.
          rung: `Rung`, the last one with another share.
          until: float, the share of the time after which no simulation begins.
        """
        steps = self._lengths(trials, rung)
        self._simulate([trial for trial, each in steps.items() if each > self._steps[trial]],
                       steps.get, until, len(RUNGS) - 1)

    def _is_cut_short(self, trial, soonest):
        """Returns whether a trial came to the last rung, but not to `soonest`, in seconds."""
        row, rung = self.found[trial].get(1, (None, 0))
        if rung < len(RUNGS) - 1 or self.worth(trial)[0] != 1:
            return False
        return self._space.start(trial.config) + float(row['seconds']) < soonest

    def _go_on(self, trials, until):
        """Tries more trials of a list, and such as are like the best, until a share of the time.

        Returns those that may be next, as `_halve`.
        """
        while True:
            left = self._left(until)
            if left <= 0:
                return trials
            rung = RUNGS[-1]._replace(share=left)
            some = [trial for trial in self._affordable(
                [trial for trial in trials if trial not in self.found], rung)
                if trial.config not in self.too_long][:_AT_A_TIME]
            if not some:
                return trials
            # One process as far as the others, so that they can be compared.
            self._simulate_on(some + self._not_there(filter(None, [self._of_one()])), rung, until)
            trials = self._next(trials)

    def _not_there(self, trials):
        """Returns those trials that have something left to show: all but who came to the target."""
        return [trial for trial in trials
                if trial not in self.found or self.worth(trial)[0] or self._goal.within]

    def _enough(self, config, rung):
        """Returns after how many local steps of a `Config` a rung ends at the latest, a float."""
        return rung.steps * self._needed * max(1, config.workers / _MANY)

    def _is_there(self):
        """Returns whether any trial but those of one process has come to the target."""
        return any(trial.config != ONE and not self.worth(trial)[0] for trial in self.found)

    def _affordable(self, trials, rung, least=BEST):
        """Returns the first ones of a list of trials, as many as a rung has time for.

        Args:
          trials: list of `Trial`.
          rung: `Rung`.
          least: int, how many at least; these get less than a rung wants if there is no time.
        """
        most = self._afford(rung.share, least)
        left, begun, found = rung.share * self._seconds, set(), []
        for trial in trials:
            left -= self._fixed + self._cost * min(self._enough(trial.config, rung), most)
            left -= _PROCESS * (trial.config.scheme not in begun)
            begun.add(trial.config.scheme)
            if left < 0 and len(found) >= least:
                break
            found.append(trial)
        return found

    def _next(self, trials):
        """Returns trials for the next rung: the best of these, and some like them, best first."""
        its = {trial.config for trial in trials}
        ranked = [trial for trial in self.ranked() if trial.config in its]
        kept = ranked[:max(BEST, len(ranked) // 3)]
        around = [self._space.around(trial)[1:] for trial in kept]
        known = {trial.config for trial in self.found}
        others = [[Trial(config, trial.exponent)
                   for config in self._affordable_first(trial.config.scheme)
                   if config not in known and config not in self.too_slow][:_LIKE_IT]
                  for trial in _first_of_each(kept)[:_LEADERS]]
        found = [*kept, *sum(around[:_LEADERS], []), *sum(others, []),
                 *sum(around[_LEADERS:BEST], []),
                 *(each for trial in _first_of_each(ranked) for each in self._space.around(trial)),
                 *(trial for trial in self._all if trial not in self.found)]
        return list(collections.OrderedDict.fromkeys(found))

    def diverged(self):
        """Returns the schemes of which each simulation diverged, a sorted list of strings."""
        outcomes = collections.defaultdict(list)
        for trial in self.ranked():
            outcomes[trial.config.scheme].append(self.worth(trial)[0] == _DIVERGED)
        return sorted(scheme for scheme, each in outcomes.items() if all(each))

    def best(self):
        """Returns the best trial of each scheme, a list of at most BEST, one process among them."""
        best = _first_of_each(
            trial for trial in self.ranked() if self.worth(trial)[0] != _DIVERGED)
        alone = [trial for trial in best[BEST:] if trial.config.scheme == ALONE]
        return best[:BEST - len(alone)] + alone

    def _repeat(self):
        """Simulates the best one of each scheme with other seeds."""
        for _ in range(_OF_EACH_SCHEME):  # by its mean another one may be the best
            best = self.best()
            if self._goal.target:  # other seeds of who is not there would tell nothing
                best = [trial for trial in best if not self.worth(trial)[0]] or best
            for seed in range(2, _OF_EACH_SCHEME + 1):
                self._simulate([trial for trial in best if seed not in self.found[trial]],
                               self._to_the_target, 1, len(RUNGS), seed)

    def _to_the_target(self, trial, more=_MORE):
        """Returns how many local steps another seed of a trial is simulated for, a float."""
        row = self.found[trial][1][0]
        if row['target_examples'] == '':
            return int(row['examples']) / self._space.batch_size
        most = max(float(own['target_examples'] or 0) for own, _ in self.found[trial].values())
        return more * most / self._space.batch_size

    def _late(self, within):
        """Returns a dict by seed of the trials of which it did not come to the target in its time.

        Such a seed makes a setting one that does not come there, though it may come there a moment
        later. These are the trials whose first seed came there, and whose mean is at most `within`
        times that of the best if the late seeds come there right after their end.
        """
        most, found = within * self._soonest(), collections.defaultdict(list)
        for trial, its in self.found.items():
            kinds = {seed: worth(*each)[0] for seed, each in its.items()}
            late = [seed for seed, kind in kinds.items() if kind and its[seed][1] <= len(RUNGS)]
            if kinds.get(1, 1) or _DIVERGED in kinds.values() or not late:
                continue
            seconds = [float(row['target_seconds'] or row['seconds']) for row, _ in its.values()]
            if self._space.start(trial.config) + statistics.mean(seconds) <= most:
                for seed in late:
                    found[seed].append(trial)
        return found

    def _make_sure(self, may_be_best, until=1):
        """Simulates all that may be the best with other seeds, while there is time.

        Args:
          may_be_best: pairs of numbers, see `_MAY_BE_BEST`.
          until: float, the share of the time after which no simulation begins.
        """
        number = -1
        while number < self.number and self._left(until) > 0:
            number = self.number
            for seed, trials in self._late(may_be_best[0][0]).items():
                self._simulate(trials, lambda trial: self._to_the_target(trial, _LATE), until,
                               len(RUNGS) + 1, seed)
            following = {trial: 1 + max(self.found[trial])
                         for trial in self._with_few_seeds(may_be_best)[:_AT_A_TIME]}
            for seed in sorted(set(following.values())):
                self._simulate([trial for trial, its in following.items() if its == seed],
                               self._to_the_target, until, len(RUNGS), seed)

    def _with_few_seeds(self, may_be_best):
        """Returns the trials that may be the best one and have few seeds, the best ones first."""
        best = self._soonest()
        there = [trial for trial in self.ranked() if self.worth(trial)[0] == 0]
        for within, seeds in may_be_best:
            found = [trial for trial in there if len(self.found[trial]) < seeds
                     and self.worth(trial)[1] <= within * best]
            if found:
                return found
        return []
