"""A parameter server: holds variables and applies updates to them, until every worker is done."""

import console  # first: it loads TensorFlow without its banners
from absl import flags
import cluster
import tensorflow.compat.v1 as tf

FLAGS = flags.FLAGS


def main(_):
    resolver = cluster.resolve('ps')
    config = tf.ConfigProto(intra_op_parallelism_threads=FLAGS.num_threads,
                            inter_op_parallelism_threads=FLAGS.num_threads)
    server = tf.train.Server(resolver.cluster_spec(), 'ps', resolver.task_id, config=config)
    # Not server.join(), which never returns.
    cluster.wait_until_done(server, resolver)


if __name__ == '__main__':
    console.run(main)
