"""Builds a model as schemes need it: on values other than those of its variables."""

import copy
import re
import sys
import time

from tfdist.model import averages, collecting, inventory, stand_ins, starts, state
from tfdist.scheme import exchange, graphs, tables, trainee
from tfdist.start.quiet import tf


class Network(trainee.Trainee):
    """A model and its variables, for a scheme to train.

    Attributes:
      variables: list, the center of the schemes: `tf.Variable`, and `tables.Rows` for tables.
      state: `state.State`, the variables that the model itself assigns to; None if there are none.
      own: `state.Own`, the local variables of the model; None if there are none.
      collected: list of dicts, what each training build has added to collections, lists by name.
    """

    def __init__(self, model, batches, delay=0., tables_stay_on_ps=True):
        """Builds the model once, to make its variables.

        Args:
          model: `model_file.Model`.
          batches: list of nests of tensors, one for each call of `gradients_at`.
          delay: float, seconds to waste on each batch.
          tables_stay_on_ps: bool, whether the scheme can leave tables on the ps, and read rows.

        Raises:
          SystemExit: naming a variable that a scheme cannot train.
        """
        self._model, self._delay = model, delay
        self.recipe = model.recipe
        self._scope = tf.get_variable_scope()
        if not batches:
            sys.exit("The model's train_batches made no batch.")
        self._all = inventory.Inventory(model, batches[0], tables_stay_on_ps)
        self._start()
        self._begin(batches)
        self._averages = []

    def _start(self):
        """Has the variables begin with the model's `initial_values`, if it has any."""
        scope = self._scope.name
        names = sorted(set(starts.names_of(self._all.made, scope)))
        values = self._model.initial_values(names)
        if values is None:
            return
        without = starts.give(self._all.made, values, scope)
        self._model.remark_once(
            f'initial_values of the model are for {len(names) - len(without)} of its {len(names)} '
            f'variables{", not for " if without else ""}{", ".join(without)}')

    def shared_by(self, num_workers):
        """Has the chief say what workers share that may be meant for one of them."""
        if self._all.replaced and num_workers != 1:
            names = ', '.join(variable.op.name for variable in self._all.replaced)
            self._model.remark_once(
                f'the model replaces {names}: the changes of all workers are added up; state that '
                'each worker is to have by itself belongs into local variables')

    @property
    def summaries(self):
        """Dict by tag of string tensors: the model's `tf.summary` of the last batch of a run."""
        first, last = (collected.get(tf.GraphKeys.SUMMARIES, []) for collected in
                       (self._all.collected, self.collected[-1]))
        return {one.op.name: same for one, same in zip(first, last)}

    def hooks(self):
        """See `trainee.Trainee`."""
        return self._model.hooks()

    def again(self, batches=None, count=None):
        """Returns another `Network` of the same variables, for another run of the graph.

        Args:
          batches: list of nests of tensors, by default those of this one.
          count: int, how many of these batches such a run takes; by default all.
        """
        other = copy.copy(self)
        other._begin((self._batches if batches is None else batches)[:count])
        return other

    def refuse_to_share_state(self, replicas):
        """Ends the program if replicas in one program would share state of a worker's own.

        Args:
          replicas: int, how many replicas there are.
        """
        if self.own and replicas > 1:
            names = ', '.join(variable.op.name for variable in self.own.variables)
            sys.exit(f"The model keeps state of a worker's own in local variables ({names}), and "
                     f'the {replicas} replicas in this program would share it: take a scheme with '
                     'a process for each worker.')

    @property
    def averages(self):
        """The `averages.Averages` of the variables, which the test uses; or None."""
        if not self._averages:  # the list is shared with the networks of `again`
            self._averages.append(averages.asked_for(self.variables, self._model))
        return self._averages[0]

    def _begin(self, batches):
        """Prepares for a run of the graph that takes these batches."""
        self._batches, self._fresh = batches, iter(batches)
        self.variables = [tables.Rows(variable) if variable in self._all.tables else variable
                          for variable in self._all.trained]
        self.state = state.State(self._all.assigned) if self._all.assigned else None
        self.own = state.Own(self._all.own) if self._all.own else None
        self._always = {each.stands_for: each for kept in (self.state, self.own) if kept
                        for each in kept.stand_ins}
        self._computes, self._has_gradients = None, False
        self._copies = {}  # of frozen variables, by the device that has them
        self.collected, self._losses = [], []
        self._given = graphs.ancestors(tf.nest.flatten(batches, expand_composites=True))

    def _frozen(self):
        """Returns a dict of stand-ins for the frozen variables, by variable.

        A worker reads them once in a session, and keeps a copy.
        """
        here = tf.no_op().device
        if here not in self._copies:
            made = {}
            for variable in self._all.frozen:
                value = exchange.read(variable)
                if variable.device != here:
                    with tf.device(here):
                        value = exchange.own_variable(
                            value, f'frozen/{variable.op.name}').read_value()
                made[variable] = stand_ins.of_value(variable, value)
            self._copies[here] = made
        return self._copies[here]

    def _build(self, batch, training, in_place_of, after=()):
        """Builds the model again, on the same variables, or on stand-ins for them.

        Args:
          batch: nest of tensors.
          training: bool.
          in_place_of: dict of stand-ins by variable.
          after: list of tensors of earlier builds, for which the batch waits.
        """
        handing_out = _HandingOut(self._all, training, in_place_of)
        values = stand_ins.given(in_place_of.values()) | {tensor.op for tensor in after}
        self._given |= values
        # Entering the scope again restarts the numbering of layers without a name.
        with tf.variable_scope(self._scope, reuse=True, custom_getter=handing_out.get), \
                tf.variable_creator_scope(handing_out.create), \
                self._all.collections.as_found(makes_variables=False) as collected:
            loss, metrics = collecting.call(self._model, batch, training, values)
        if training:
            self.collected.append(collected)
            handing_out.check_all_asked()
        stand_ins.check(in_place_of, [loss, *tf.nest.flatten(list(metrics.values()))], values)
        return loss, metrics

    def gradients_at(self, values, sources=None, clipped=True):
        """Computes the gradients of a local step on fresh batches, `pace.accumulate` of them.

        Args:
          values: list of tensors to take the place of the variables.
          sources: list of tensors from which the values are made, one for each variable; by default
            the values themselves.
          clipped: bool, whether the recipe clips these gradients; otherwise it clips their mean
            over the workers, see `optimizer`.

        Returns:
          List of dense tensors of the sources' shapes; and the figures, a dict of float32 scalars:
          'loss' and the model's metrics, means over the batches.

        Raises:
          SystemExit: naming the variables that the loss does not depend on.
        """
        total, every = None, []
        self._has_gradients = True
        for _ in range(self.pace.accumulate):
            # One batch after the other, so that only one has its activations in memory.
            gradients, figures = self._gradients_of(total or [], values, sources)
            total = exchange.add(total, gradients) if total else gradients
            every.append(figures)
        if len(every) > 1:
            total, every = [each / len(every) for each in total], [exchange.mean(every)]
        return self.recipe.clip(total) if clipped else total, every[0]

    def _next(self):
        """Returns the next batch."""
        batch = next(self._fresh, None)
        if batch is None:
            sys.exit("The model's train_batches made fewer batches than the scheme takes in a run: "
                     'it has to make as many as its argument count says.')
        return batch

    def _gradients_of(self, after, values, sources):
        """Returns the gradients and the figures of the next batch, see `gradients_at`.

        It begins once the tensors in the list `after` are there.
        """
        batch, values = self._late(*self._waiting(self._next(), values, after))
        made = self._stand_ins(values)
        loss, metrics = self._build(batch, True, {**self._always, **self._frozen(), **made}, after)
        if self._computes:
            if sources is not None:
                sys.exit(f'{type(self._computes).__name__} has a compute_gradients() of its own: '
                         'this scheme, which cuts variables up, cannot call it.')
            with collecting.failures('optimizer'):
                gradients = [gradient for gradient, _ in self._computes.compute_gradients(
                    loss, var_list=list(made.values()))]
        else:
            gradients = tf.gradients(loss, values if sources is None else sources)
        check_gradients(gradients, self.variables)
        self._losses.append(loss)
        figures = {'loss': tf.cast(loss, tf.float32)}
        figures.update((name, tf.cast(metric, tf.float32)) for name, metric in
                       metrics.items() if not isinstance(metric, tuple))
        return [tf.convert_to_tensor(gradient) for gradient in gradients], figures

    def finish(self):
        """Is called after the last batch: determines the rows that a run asks for.

        Raises:
          SystemExit: if something is fed by nobody.
        """
        if next(self._fresh, None) is not None:
            sys.exit("The model's train_batches made more batches than the scheme takes in a run: "
                     'it has to make as many as its argument count says.')
        for variable in self.variables:
            if isinstance(variable, tables.Rows):
                variable.all_asked()
        _check_sources(self._batches, self._losses)
        step = tf.train.get_global_step()
        if len(self._losses) > 1 and step is not None and set(
                step.handle.consumers()) & graphs.ancestors(self._losses, self._given):
            self._model.remark_once('the model reads the global step, which counts exchanges here, '
                                    'and is the same for all batches between two of them')

    def _stand_ins(self, values):
        """Returns a dict of stand-ins by variable."""
        made = {}
        for variable, value in zip(self.variables, values):
            if value is None:
                continue
            if isinstance(variable, tables.Rows):
                made[variable.table] = stand_ins.of_table(variable.table, value,
                                                          variable.gather_from(value))
            else:
                made[variable] = stand_ins.of_value(variable, value)
        return made

    def _late(self, batch, values):
        """Returns a batch and values after the delay, which begins when the values are there."""
        if not self._delay:
            return batch, values
        with tf.control_dependencies(values):
            wasted = tf.py_func(lambda: time.sleep(self._delay), [], [])
        return self._waiting(batch, values, [wasted])

    def _waiting(self, batch, values, after):
        """Returns a batch and values, of which one waits for a list of operations or tensors.

        The batch waits, and so does all that is made of it. But with tables the values do: the rows
        of all batches are read at once, so that no ids can wait for an earlier batch.
        """
        if not after:
            return batch, values
        with tf.control_dependencies(after):
            if self._all.tables:
                return batch, [tf.identity(value) for value in values]
            return tf.nest.map_structure(tf.identity, batch, expand_composites=True), values

    def at_variables(self, batch, values=None):
        """Builds the model for a test, at the variables themselves.

        Args:
          batch: nest of tensors.
          values: list of tensors to take the place of the variables; by default their moving
            averages, if there are any.

        Returns:
          The loss, a scalar tensor; and a dict of metrics by name, see `model_file.Model`.
        """
        if values is None and self.averages:
            values = self.averages.values()
        return self._build(batch, False, self._stand_ins(values or []))

    def model_rule(self, learning_rate):
        """See `trainee.Trainee`."""
        return self._model.local_rule(learning_rate)

    def model_optimizer(self, learning_rate):
        """See `trainee.Trainee`."""
        return self._model.optimizer(learning_rate)

    def tested_values(self, values=None):
        """Returns a dict of tensors by name of a variable, frozen ones included: as tested.

        Args:
          values: see `at_variables`.
        """
        if values is None and self.averages:
            values = self.averages.values()
        tested = {variable.op.name: exchange.read(variable) for variable in self._all.made}
        tested.update((variable.op.name, value) for variable, value in
                      zip(self.variables, values or []) if value is not None)
        return tested


class _HandingOut:
    """Hands out the variables of the first build, or their stand-ins, in another build."""

    def __init__(self, all_, training, in_place_of):
        """Takes the `inventory.Inventory`, and the arguments of `Network._build`."""
        self._all, self._training, self._in_place_of = all_, training, in_place_of
        self._in_order = {True: iter(all_.without_names(all_.own)),  # by whether they are local
                          False: iter(all_.without_names(all_.made))}
        self._asked, self._names = set(), {}

    def check_all_asked(self):
        """Ends the program if a variable was not asked for."""
        kept = [variable.op.name for variable in self._all.made if variable not in self._asked]
        if kept:
            sys.exit(f'The second build of the model does not ask for the variables '
                     f'{", ".join(kept)}: they would not be trained. Make them, and the layers '
                     'that have them, in each call of its function.')

    def _hand_out(self, variable):
        """Returns what stands for a variable; the first time, lists it as its creation did."""
        found = self._in_place_of.get(variable, variable)
        if variable not in self._asked:
            self._asked.add(variable)
            tf.add_to_collections(self._all.listed_in[variable], found)
        return found

    def get(self, getter, name, *args, **kwargs):
        """Is a custom getter, see `tf.variable_scope`."""
        if inventory.is_local(kwargs) and not self._training:
            return getter(f'{name}_in_test', *args, **dict(kwargs, reuse=tf.AUTO_REUSE))
        found = self._find(getter, name, *args, **dict(kwargs, reuse=True))
        parts = [self._hand_out(part) for part in inventory.parts_of(found)]
        regularizer = kwargs.get('regularizer')
        for part in parts if regularizer else []:
            tf.losses.add_loss(regularizer(part), tf.GraphKeys.REGULARIZATION_LOSSES)
        return parts[0] if hasattr(found, 'handle') else stand_ins.of_parts(found, parts)

    def _find(self, getter, name, *args, **kwargs):
        """Returns the variable of the first build; by its place, if an op's name is in its own."""
        same = self._names.get(name, name)
        if name not in self._names and len(self._names) < len(self._all.names):
            in_place = self._all.names[len(self._names)]
            if _without_numbers(in_place) == _without_numbers(name):
                same = in_place
        self._names[name] = same
        try:
            return getter(same, *args, **kwargs)
        except ValueError as error:
            sys.exit(f'The second build of the model asks for the variable {name}, but the '
                     f'first made none like it ({str(error).splitlines()[0]}). Each build has '
                     'to make the same variables.')

    def create(self, next_creator, **kwargs):
        """Is a variable creator, see `tf.variable_creator_scope`."""
        local = inventory.is_local(kwargs)
        if inventory.is_of_metric(kwargs) or local and not self._training:
            return next_creator(**kwargs)
        variable = next(self._in_order[local], None)
        if variable is None:
            sys.exit('The second build of the model makes a variable that the first did not: '
                     f'{kwargs.get("name")}. Each build has to make the same variables.')
        shape = kwargs.get('shape') or getattr(kwargs.get('initial_value'), 'shape', None)
        if shape is not None and not variable.shape.is_compatible_with(shape):
            sys.exit(f'The second build of the model makes a variable of shape {shape} where '
                     f'the first made {variable.op.name} of {variable.shape}. Each build has '
                     'to make the same variables.')
        return self._hand_out(variable)


def _without_numbers(name):
    """Returns the name of an op or a variable without the numbers that make it unique."""
    return re.sub(r'_\d+(?=/|$)', '', name)


def _check_sources(batches, losses):
    """Ends the program if a loss needs what nobody feeds; has sessions initialize own iterators.

    Args:
      batches: list of nests of tensors, of all builds.
      losses: list of tensors, of all builds.
    """
    fed = {tensor.op for tensor in tf.get_collection(state.FED)}
    initialized = tf.get_collection(tf.GraphKeys.TABLE_INITIALIZERS)
    ops = graphs.ancestors(losses) - fed
    for op in sorted(ops, key=lambda op: op.name):
        if op.type == 'Placeholder':
            sys.exit(f"The model's loss depends on the placeholder {op.name}, which nobody feeds: "
                     'take it from the batch, or make it a constant.')
        makers = [maker for output in op.outputs if op.type.startswith('Iterator')
                  for maker in output.consumers() if maker.type == 'MakeIterator']
        if makers and not set(makers) & set(initialized) and not any(
                each.type == 'Placeholder' for each in graphs.ancestors(makers[:1])):
            tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, makers[0])
    of_batches = graphs.ancestors(tf.nest.flatten(batches, expand_composites=True))
    own = [op for op in ops - of_batches if re.match('(OneShot)?Iterator(V2)?$', op.type)]
    if len(losses) > 1 and own:
        sys.exit(f'The model makes the iterator {own[0].name}, in each call another one: all '
                 'batches of a run would get the same elements. Make it in train_batches.')


def check_gradients(gradients, variables):
    """Ends the program if one of the `gradients`, a list, is None, naming its variable."""
    without = [variable.op.name for variable, gradient in zip(variables, gradients)
               if gradient is None]
    if without:
        sys.exit(f'The loss does not depend on the trainable {", ".join(without)}, or has no '
                 'gradient there: make it with trainable=False, or leave it out.')
