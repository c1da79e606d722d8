"""Runs parts of a graph alone: tensors that are fetched together, and what has to be fed."""

import collections

import numpy as np
from tensorflow.core.protobuf import config_pb2
from tfdist.start.quiet import tf


class Part:
    """Tensors that one run fetches, as fast as a session can.

    Attributes:
      feeds: list of the tensors to be fed: those of `may_be_fed` that the fetches depend on.
      ops: set of the ops that run.
    """

    def __init__(self, session, fetches, may_be_fed=()):
        """Takes a `tf.Session`, lists of what to fetch, and of tensors that may be fed."""
        fetches = [session.graph.as_graph_element(fetch) for fetch in fetches]
        may_be_fed = list(collections.OrderedDict((tensor.name, tensor)
                                                  for tensor in may_be_fed).values())
        self.ops, used = _ancestors(fetches, {tensor.name for tensor in may_be_fed})
        self.feeds = [tensor for tensor in may_be_fed if tensor.name in used]
        options = config_pb2.CallableOptions()
        options.feed.extend(tensor.name for tensor in self.feeds)
        options.fetch.extend(fetch.name for fetch in fetches if isinstance(fetch, tf.Tensor))
        options.target.extend(fetch.name for fetch in fetches if isinstance(fetch, tf.Operation))
        # `Session.make_callable` takes twice as long where something is fed.
        self.run = session._make_callable_from_options(options)
        self._dtypes = [tensor.dtype.as_numpy_dtype for tensor in self.feeds]

    def __call__(self, values):
        """Returns the list of values; `values` has those to be fed, by the tensors' names."""
        return self.run(*[np.asarray(values[tensor.name], dtype)
                          for tensor, dtype in zip(self.feeds, self._dtypes)])


def _ancestors(fetches, fed, made=()):
    """Returns the set of ops that run to fetch a list, and a dict by name of tensors fed to them.

    Args:
      fetches: list of tensors and ops.
      fed: set of names of tensors that may be fed.
      made: collection of ops that ran before: their outputs may be fed, too.
    """
    ops, used, left = set(), {}, [getattr(fetch, 'op', fetch) for fetch in fetches]
    while left:
        op = left.pop()
        if op not in ops:
            ops.add(op)
            left += op.control_inputs
            for tensor in op.inputs:
                if tensor.name in fed or tensor.op in made and _can_be_kept(tensor):
                    used[tensor.name] = tensor
                else:
                    left.append(tensor.op)
    return ops, used


def _can_be_kept(tensor):
    """Returns whether a tensor can be fed; if not, its op runs again, as a constant does."""
    return (len(tensor.op.inputs) > 0 and tensor.op._get_control_flow_context() is None
            and tensor.dtype not in (tf.resource, tf.variant))


def kept_between(fetches, may_be_fed):
    """Finds tensors to fetch in one run and feed in later ones, so that no op runs twice.

    Args:
      fetches: list by run of lists of tensors and ops.
      may_be_fed: list of tensors that may be fed in any run.

    Returns:
      A list by run of lists of tensors to fetch as well; and a list by run of lists of tensors
      that may be fed: those that earlier runs fetched, and `may_be_fed`.
    """
    kept, feeds, made = [[] for _ in fetches], [], {}
    tensors = {tensor.name: tensor for tensor in may_be_fed}
    for number, each in enumerate(fetches):
        ops, used = _ancestors(each, set(tensors), made)
        for name in sorted(set(used) - set(tensors)):
            tensors[name] = used[name]
            kept[made[used[name].op]].append(used[name])
        made.update((op, number) for op in ops - set(made))
        feeds.append(list(tensors.values()))
    return kept, feeds
