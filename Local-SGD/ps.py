"""A parameter server: holds variables and applies updates to them, until every worker is done."""

from tfdist import cluster, console, ending, sessions
from tfdist.quiet import tf


def main(_):
    resolver = cluster.resolve('ps')
    server = tf.train.Server(resolver.cluster_spec(), 'ps', resolver.task_id,
                             config=sessions.config())
    ending.wait_until_done(server, resolver)  # not server.join(), which never returns


if __name__ == '__main__':
    console.run(main)
