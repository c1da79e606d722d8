"""Calls a model's function, each time with TensorFlow's collections as they were the first time."""

import contextlib
import sys
import traceback

from tfdist.model import stand_ins
from tfdist.scheme import graphs
from tfdist.start import console
from tfdist.start.quiet import tf

# What a session initializes or starts: what any build adds to these is needed.
_NEEDED = {tf.GraphKeys.LOCAL_VARIABLES, tf.GraphKeys.METRIC_VARIABLES,
           tf.GraphKeys.TABLE_INITIALIZERS, tf.GraphKeys.QUEUE_RUNNERS,
           tf.GraphKeys.SAVEABLE_OBJECTS, tf.GraphKeys.RESOURCES, tf.GraphKeys.LOCAL_RESOURCES,
           tf.GraphKeys.ASSET_FILEPATHS, tf.GraphKeys.COND_CONTEXT, tf.GraphKeys.WHILE_CONTEXT}


class Collections:
    """The collections of a graph, of every name, as a model's function is to find them."""

    def __init__(self):
        """Notes the collections of the default graph: all calls find these."""
        self._graph = tf.get_default_graph()
        self._found = self._now()

    def _now(self):
        """Returns a dict of lists by name, without those that are TensorFlow's own state."""
        return {name: list(self._graph.get_collection_ref(name))
                for name in self._graph.get_all_collection_keys() if not name.startswith('_')}

    def _become(self, collections):
        for name in {*self._now(), *collections}:
            self._graph.get_collection_ref(name)[:] = collections.get(name, [])

    @contextlib.contextmanager
    def as_found(self, makes_variables):
        """Has the block find the collections as noted, and yields a dict of what it adds to them.

        After the block they are what they were before it, with what a session needs to initialize,
        and, if the block `makes_variables`, with these.
        """
        before, added = self._now(), {}
        self._become(self._found)
        yield added
        for name, elements in self._now().items():
            added[name] = elements[len(self._found.get(name, [])):]
        self._become(before)
        for name, elements in added.items():
            self._graph.get_collection_ref(name).extend(
                each for each in elements if not stand_ins.is_one(each)
                and (name in _NEEDED or makes_variables and hasattr(each, 'initializer')))


@contextlib.contextmanager
def failures(name, hint=''):
    """Ends the program if a function of the model fails in the block: with the trace of its code.

    Args:
      name: string, the function's.
      hint: string, what it is likely that the cause is.

    Raises:
      SystemExit: see above.
    """
    try:
        yield
    except Exception as error:
        frames = console.own_frames(traceback.extract_tb(error.__traceback__))
        trace = ''.join(traceback.format_list(frames)
                        + traceback.format_exception_only(type(error), error))
        sys.exit(f"The model's {name} fails{hint}:\n{trace.rstrip()}")


@contextlib.contextmanager
def _without_updates(remark):
    """Has optimizers update nothing in the block: schemes do; `remark` is told of it, a string."""
    def apply_nothing(optimizer, *_, **__):
        remark(f"the model's own function applies {type(optimizer).__name__}, which has no effect "
               'here: return it from optimizer(learning_rate)')
        return tf.no_op()

    apply = tf.train.Optimizer.apply_gradients
    tf.train.Optimizer.apply_gradients = apply_nothing
    try:
        yield
    finally:
        tf.train.Optimizer.apply_gradients = apply


def _hint(batch):
    """Returns why a model may fail in the test that did not in training; '' if that is not why."""
    first = tf.nest.flatten(batch, expand_composites=True)[0]
    return '' if first.shape.is_fully_defined() else (
        ' for the test, whose batches are of no fixed size: take it from tf.shape(x)[0], not from '
        'x.shape[0]')


def call(model, batch, training, values=()):
    """Calls the model's function, within `Collections.as_found`.

    In training, the regularization losses are added to the loss, unless it contains them already,
    and update ops run with it. What they assign to variables is also in the model's state. Layers
    of Keras that are not told whether they are in training learn it here.

    Args:
      model: `model_file.Model`.
      batch: nest of tensors.
      training: bool.
      values: set of ops, what the model is built on; the loss is not looked for beyond them.

    Returns:
      The loss, a scalar tensor; and a dict of metrics by name.

    Raises:
      SystemExit: if the loss is not one number, or the function fails: with the trace of its code.
    """
    keras = model.keras()
    if keras:
        keras.backend.set_learning_phase(int(training))
    with failures('loss_and_metrics', '' if training else _hint(batch)), \
            _without_updates(model.remark_once):
        loss, metrics = model.loss_and_metrics(batch, training)
        loss = tf.convert_to_tensor(loss)
        metrics = dict(metrics)
    if loss.shape.rank != 0 or not loss.dtype.is_floating:
        sys.exit(f"The model's loss has to be one number: it is of shape {loss.shape} and "
                 f'{loss.dtype.name}.')
    graph = tf.get_default_graph()
    known = graphs.ancestors([loss], beyond=values)
    if not keras and any(op.name.endswith('keras_learning_phase') for op in known):
        sys.exit('Layers of Keras in the model do not know whether they are in training: import '
                 'tensorflow.keras at the top of model.py, or give them training=training.')
    terms = [term for term in graph.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES)
             if term.op not in known]
    updates = graph.get_collection(tf.GraphKeys.UPDATE_OPS)
    if training and terms:  # saves an op otherwise: each takes time in a step of a small network
        loss = tf.add_n([loss, *terms])
    if training and updates:
        with tf.control_dependencies(updates):
            loss = tf.identity(loss)
    return loss, metrics
