"""A worker: runs the replica that the chief's graph puts on it. It has no graph of its own."""

from tfdist import cluster, console, ending, sessions
from tfdist.quiet import tf

JOBS = 'chief', 'ps', 'worker'


def serve(_):
    resolver = cluster.resolve('worker', JOBS)
    server = tf.train.Server(resolver.cluster_spec(), 'worker', resolver.task_id,
                             config=sessions.config())
    ending.wait_until_done(server, resolver, job='chief')  # not server.join(), which never returns


if __name__ == '__main__':
    console.run(serve)
