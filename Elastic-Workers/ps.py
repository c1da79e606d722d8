"""A parameter server: holds variables and applies updates to them, for whichever workers there are.

It knows no worker at the start, and no other ps.
"""

import find_library  # noqa: F401  (finds tfdist)
from tfdist.cluster import membership, servers
from tfdist.start import console
from tfdist.start.quiet import tf
import members


def serve_whoever_comes(_):
    resolver = membership.resolve('ps', jobs=('ps',), alone=True)
    server = tf.train.Server(resolver.cluster_spec(), 'ps', resolver.task_id,
                             config=servers.config())
    members.serve(server, resolver)  # not server.join(), which never returns


if __name__ == '__main__':
    console.run(serve_whoever_comes)
