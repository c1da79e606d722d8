"""Calls a model's function; what it adds to TensorFlow's collections is then of this call alone."""

import sys

from tfdist import graphs
from tfdist.quiet import tf

_COLLECTIONS = (tf.GraphKeys.REGULARIZATION_LOSSES, tf.GraphKeys.LOSSES, tf.GraphKeys.UPDATE_OPS)


def call(model, batch, training):
    """Calls the function.

    When training, terms of regularizers become a part of the loss, unless it has them already, and
    updates run with it. Those of variables that the model assigns to are in its state besides.

    Args:
      model: `models.Model`.
      batch: nest of tensors.
      training: bool.

    Returns:
      The loss, a scalar tensor; and a dict of metrics by name.

    Raises:
      SystemExit: if the loss is not one number.
    """
    graph = tf.get_default_graph()
    outside = {name: list(graph.get_collection_ref(name)) for name in _COLLECTIONS}
    for name in _COLLECTIONS:
        graph.clear_collection(name)
    loss, metrics = model.loss_and_metrics(batch, training)
    loss = tf.convert_to_tensor(loss)
    if loss.shape.rank != 0 or not loss.dtype.is_floating:
        sys.exit(f"The model's loss has to be one number: it is of shape {loss.shape} and "
                 f'{loss.dtype.name}.')
    known = graphs.ancestors([loss])
    terms = [term for term in graph.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES)
             if term.op not in known]
    updates = graph.get_collection(tf.GraphKeys.UPDATE_OPS)
    if training and terms:  # each op takes its time, in a step of a small network
        loss = tf.add_n([loss, *terms])
    if training and updates:
        with tf.control_dependencies(updates):
            loss = tf.identity(loss)
    for name, elements in outside.items():
        graph.get_collection_ref(name)[:] = elements
    return loss, metrics
