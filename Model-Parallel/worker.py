"""A worker: keeps the variables and runs the operations that the chief's graph puts on it."""

import console  # first: it loads TensorFlow without its banners
from absl import flags
import cluster
import tensorflow.compat.v1 as tf

FLAGS = flags.FLAGS
JOBS = 'chief', 'worker'


def serve(_):
    resolver = cluster.resolve('worker', JOBS)
    config = tf.ConfigProto(intra_op_parallelism_threads=FLAGS.num_threads,
                            inter_op_parallelism_threads=FLAGS.num_threads,
                            gpu_options=tf.GPUOptions(allow_growth=True))
    server = tf.train.Server(resolver.cluster_spec(), 'worker', resolver.task_id, config=config)
    # Not server.join(), which never returns.
    cluster.wait_until_done(server, resolver, job='chief')


if __name__ == '__main__':
    console.run(serve)
