"""A parameter server: holds the variables and applies the updates of the chief's graph to them.

It is the chief that says when this task is needed no longer.
"""

from tfdist import cluster, console, ending, sessions
from tfdist.quiet import tf

JOBS = 'chief', 'ps', 'worker'


def serve(_):
    resolver = cluster.resolve('ps', JOBS)
    server = tf.train.Server(resolver.cluster_spec(), 'ps', resolver.task_id,
                             config=sessions.config())
    ending.wait_until_done(server, resolver, job='chief')  # not server.join(), which never returns


if __name__ == '__main__':
    console.run(serve)
