"""A worker: keeps the variables and runs the operations that the chief's graph puts on it.

How to start it: `bash run.sh` on this machine, or by hand on two hosts, alpha and beta:

    HOSTS="--chief_hosts=alpha:2221 --worker_hosts=alpha:2223,beta:2223"
    python worker.py $HOSTS --task_index=0     # on alpha
    python worker.py $HOSTS --task_index=1     # on beta
    python train.py $HOSTS --task_index=0      # on alpha
"""

import find_library  # noqa: F401  (finds tfdist)
from tfdist.cluster import membership, servers, shutdown
from tfdist.start import console
from tfdist.start.quiet import tf

JOBS = 'chief', 'worker'


def serve(_):
    resolver = membership.resolve('worker', JOBS)
    server = tf.train.Server(resolver.cluster_spec(), 'worker', resolver.task_id,
                             config=servers.config())
    # Not server.join(), which never returns.
    shutdown.wait_until_done(server, resolver, job='chief')


if __name__ == '__main__':
    console.run(serve)
