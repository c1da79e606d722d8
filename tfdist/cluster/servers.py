"""The configuration of the servers of a cluster, and of sessions on them."""

from absl import flags
from tfdist.cluster import descriptors
from tfdist.start.quiet import tf

FLAGS = flags.FLAGS
flags.DEFINE_integer('num_threads', 0, "threads in each of TensorFlow's two pools; 0: one per core",
                     lower_bound=0, upper_bound=1024)


def config(**options):
    """Makes the `tf.ConfigProto` of a server and its sessions; `options` are further fields.

    Every program that serves calls this before it listens: so this begins with its descriptors.
    """
    descriptors.begin()
    options.setdefault('gpu_options', tf.GPUOptions(allow_growth=True))
    return tf.ConfigProto(intra_op_parallelism_threads=FLAGS.num_threads,
                          inter_op_parallelism_threads=FLAGS.num_threads, **options)
