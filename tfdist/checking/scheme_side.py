"""Trains a model by a folder's own scheme with one worker, without servers."""

import sys

from tfdist.checking import counterpart, plain_side, random_ops
from tfdist.scheme import seam
from tfdist.start.quiet import tf


class SchemeSide:
    """A model in a graph of its own, and the scheme of one worker that trains it.

    Attributes:
      asked: dict, see `counterpart.Asked`.
    """

    def __init__(self, scheme_class, model, make_batches, plain, hparams):
        """Makes the scheme.

        Args:
          scheme_class: class, see `counterpart.Counterpart.scheme_class`.
          model: `model_file.Model`.
          make_batches: function that returns the batches of a run, a list of nests of tensors.
          plain: `counterpart.Counterpart`.
          hparams: object with the values of all flags as attributes.
        """
        self._graph = tf.Graph()
        with self._graph.as_default():
            tf.set_random_seed(hparams.seed)
            global_step = tf.train.get_or_create_global_step()
            made = make_batches()
            self._batches = [plain_side.parts_of(batch) for batch in made]
            network = counterpart.Asked(model, made,
                                        tables_stay_on_ps=scheme_class.tables_stay_on_ps)
            self._variables = plain_side.variables_made()
            self._scheme = scheme_class(network, global_step, hparams, 0, 1)
            self._trained = dict(zip([each.op.name for each in network.variables],
                                     plain.trained(self._scheme, hparams)))
            self.asked = network.asked
            seams = [self._scheme]
            if isinstance(self._scheme, seam.Seam):
                seams += self._scheme.others
            self._random = {each: random_ops.of(list(each.train_op.values()),
                                                sum(self._batches, [])) for each in seams}
            self._initialize = [tf.global_variables_initializer(), tf.local_variables_initializer(),
                                tf.tables_initializer()]

    def start(self, variables, begin):
        """Begins a session.

        Args:
          variables: list of `tf.Variable`, as the model makes them on the other side.
          begin: dict of arrays by name, values of these and of their averages at the beginning.

        Raises:
          SystemExit: if the model makes other variables here.
        """
        if [each.shape.as_list() for each in variables] != [
                each.shape.as_list() for each in self._variables]:
            sys.exit('check: the model makes other variables when it is called once more: '
                     f'{_names(variables)} the first time, and then {_names(self._variables)}. '
                     'Each call has to make the same variables.')
        self._compared = self._find_averages(variables)
        self._compared.update((there.op.name, here)
                              for there, here in zip(variables, self._variables))
        self._session = tf.Session(graph=self._graph, config=plain_side.CONFIG)
        self._session.run(self._initialize[0])
        # What a worker keeps may begin as a copy of the center.
        self._load(begin, tf.GraphKeys.GLOBAL_VARIABLES)
        self._session.run(self._initialize[1:])
        self._load(begin, tf.GraphKeys.LOCAL_VARIABLES)
        for hook in self._scheme.hooks:
            hook.after_create_session(self._session, tf.train.Coordinator())

    def _find_averages(self, variables):
        """Returns a dict of `tf.Variable` by the other side's names; a table has no averages."""
        if self._trained:  # these are averages of something else
            return {}
        made = {variable.op.name: variable for variable in self._graph.get_collection(
            tf.GraphKeys.GLOBAL_VARIABLES)}
        names = {f'{there.op.name}{plain_side.AVERAGE}': f'{here.op.name}{plain_side.AVERAGE}'
                 for there, here in zip(variables, self._variables)}
        return {name: made[here] for name, here in names.items() if here in made}

    def _load(self, begin, collection):
        """Gives those variables that are in a collection their values in a dict `begin`."""
        names = {variable.op.name for variable in self._graph.get_collection(collection)}
        with self._graph.as_default():
            for name, variable in self._compared.items():
                if variable.op.name in names and name in begin:
                    variable.load(begin[name], self._session)

    def values(self):
        """Returns a dict of arrays by the names of the other side, see `plain_side.PlainSide`."""
        return self._session.run({name: self._trained.get(variable.op.name, variable)
                                  for name, variable in self._compared.items()})

    def train(self, drawn, random_ops_there, numbers):
        """Trains, and returns a list of the losses of the runs, each a mean over its batches.

        Args:
          drawn: see `plain_side.PlainSide.draw`.
          random_ops_there: list of ops, those that draw random numbers for a step there.
          numbers: what these drew, see `plain_side.PlainSide.train`.

        Raises:
          SystemExit: if other ops draw random numbers here.
        """
        types = [op.type for op in random_ops_there] * len(self._batches)
        for ops in self._random.values():
            if [op.type for op in ops] == types:
                continue
            sys.exit(f'check: the model draws random numbers by {len(ops)} ops in a run '
                     f'here, and by {len(types)} in plain TensorFlow, so that the two sides cannot '
                     'be given the same ones. Leave them out for the check: a dropout that drops '
                     'nothing, for example.')
        losses, step = [], 0
        for run, of_run in zip(drawn, numbers):
            one, fed = self._at(step), {}
            for parts, batch in zip(self._batches, run):
                fed.update(zip(parts, batch))
            fed.update(plain_side.feed_of(self._random[one], sum(of_run, [])))
            result = self._session.run(one.train_op, fed)
            losses.append(result['loss'])
            step = int(result['global_step'])
        return losses

    def _at(self, step):
        """Returns what a run has that begins at a global step, see `seam.Seam.at`."""
        return self._scheme.at(step) if isinstance(self._scheme, seam.Seam) else self._scheme


def _names(variables):
    """Returns the names of variables as text."""
    return ', '.join(variable.op.name for variable in variables) or 'none'
