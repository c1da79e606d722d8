"""Keeps the large constants of many graphs once: the data that a model puts into its batches."""

import hashlib

import numpy as np
from tfdist.start.quiet import tf

_LARGE = 2 ** 16  # bytes
_ALIGNED = 64  # bytes, at which TensorFlow takes an array as it is, and does not copy it


class Constants:
    """Takes large constants out of graphs. A session keeps several copies of each that is in."""

    def __init__(self):
        self._kept = {}

    def taken_out(self, graph):
        """Returns a graph with placeholders in place of large numeric constants.

        Args:
          graph: `tf.Graph`.

        Returns:
          `tf.Graph` with the same names, which is `graph` itself if there is nothing to take out;
          and a dict of arrays to feed, by names of tensors.
        """
        definition, fed = graph.as_graph_def(), {}
        # Functions of Python live as long as the graph in which they were made.
        if not getattr(graph, '_py_funcs_used_in_graph', None):
            for node in definition.node:
                if node.op == 'Const' and node.ByteSize() > _LARGE:
                    array = tf.make_ndarray(node.attr['value'].tensor)
                    if array.dtype.kind in 'biuf':
                        fed[f'{node.name}:0'] = self._once(array)
                        _make_placeholder(node, array.shape)
        if fed:
            with tf.Graph().as_default() as graph:
                tf.import_graph_def(definition, name='')
        return graph, fed

    def _once(self, array):
        """Returns the array that equals this one and that all graphs share."""
        key = hashlib.sha256(array.tobytes()).digest(), array.dtype.str, array.shape
        if key not in self._kept:
            room = np.empty(array.nbytes + _ALIGNED, np.uint8)
            begins = -room.ctypes.data % _ALIGNED
            self._kept[key] = room[begins:begins + array.nbytes].view(array.dtype).reshape(
                array.shape)
            self._kept[key][...] = array
        return self._kept[key]


def _make_placeholder(node, shape):
    """Turns a constant, a node of a `tf.GraphDef`, into a placeholder of a shape, a tuple."""
    dtype = node.attr['dtype'].type
    node.op = 'Placeholder'
    node.attr.clear()
    node.attr['dtype'].type = dtype
    node.attr['shape'].shape.CopyFrom(tf.TensorShape(shape).as_proto())
