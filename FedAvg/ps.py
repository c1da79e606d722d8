"""A parameter server: holds variables and applies updates to them, until every worker is done."""

import find_library  # noqa: F401  (finds tfdist)
from tfdist.cluster import membership, servers, shutdown
from tfdist.start import console
from tfdist.start.quiet import tf


def main(_):
    resolver = membership.resolve('ps')
    server = tf.train.Server(resolver.cluster_spec(), 'ps', resolver.task_id,
                             config=servers.config())
    shutdown.wait_until_done(server, resolver)  # not server.join(), which never returns


if __name__ == '__main__':
    console.run(main)
