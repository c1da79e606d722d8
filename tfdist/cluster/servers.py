"""The configuration of the servers of a cluster, and of sessions on them."""

import os

from absl import flags
from tfdist.cluster import descriptors
from tfdist.start.quiet import tf

FLAGS = flags.FLAGS
flags.DEFINE_integer('num_threads', 0, "threads in each of TensorFlow's two pools; 0: one per core",
                     lower_bound=0, upper_bound=1024)


def config(waiting_ops=0, **options):
    """Makes the `tf.ConfigProto` of a server and its sessions.

    Every program that serves calls this before it listens: so this begins with its descriptors.

    Args:
      waiting_ops: int, how many operations of this process may each wait for another process in a
        thread of TensorFlow's, while that asks this server for something: there is one thread more.
      **options: further fields.
    """
    descriptors.begin()
    options.setdefault('gpu_options', tf.GPUOptions(allow_growth=True))
    threads = FLAGS.num_threads
    if waiting_ops:
        threads = max(threads or len(os.sched_getaffinity(0)), waiting_ops + 1)
    return tf.ConfigProto(intra_op_parallelism_threads=FLAGS.num_threads,
                          inter_op_parallelism_threads=threads, **options)
