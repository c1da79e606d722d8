"""A parameter server: holds variables and applies updates to them, for whichever workers there are.

It knows no worker at the start, and no other ps.
"""

from tfdist import cluster, console, membership, sessions
from tfdist.quiet import tf


def serve_whoever_comes(_):
    resolver = cluster.resolve('ps', jobs=('ps',), alone=True)
    server = tf.train.Server(resolver.cluster_spec(), 'ps', resolver.task_id,
                             config=sessions.config())
    membership.serve(server, resolver)  # not server.join(), which never returns


if __name__ == '__main__':
    console.run(serve_whoever_comes)
