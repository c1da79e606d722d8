"""A parameter server: holds the variables and applies the updates of the chief's graph to them.

The chief says when this task is no longer needed.
"""

import find_library  # noqa: F401  (finds tfdist)
from tfdist.cluster import membership, servers, shutdown
from tfdist.start import console
from tfdist.start.quiet import tf

JOBS = 'chief', 'ps', 'worker'


def serve(_):
    resolver = membership.resolve('ps', JOBS)
    server = tf.train.Server(resolver.cluster_spec(), 'ps', resolver.task_id,
                             config=servers.config())
    # Not server.join(), which never returns.
    shutdown.wait_until_done(server, resolver, job='chief')


if __name__ == '__main__':
    console.run(serve)
