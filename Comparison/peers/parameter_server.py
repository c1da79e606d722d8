"""TensorFlow 2's ParameterServerStrategy: each worker reads, computes and writes by itself.

    python Comparison/peers/parameter_server.py --model=mnist --steps=300

A coordinator hands out the steps, some at a time, to spare them messages. It cannot tell a worker's
data sets apart: each shuffles all examples in an order of its own.
"""

import math
import multiprocessing

import problem
from tfdist.start import ports
import tensorflow_network as network

tf = problem.load('tensorflow')


def serve(job, index, cluster):
    """Is a parameter server or a worker, until the process is ended."""
    # Fewer threads than this block each other, TensorFlow's guide says.
    config = network.threads(inter_op=1 if job == 'ps' else len(cluster['worker']) + 1)
    tf.distribute.Server(tf.train.ClusterSpec(cluster), job, index, protocol='grpc',
                         config=config).join()


def coordinate(options, cluster):
    """Trains on the servers of a cluster, a dict of lists of addresses by jobs."""
    coordinator = tf.distribute.coordinator.ClusterCoordinator(
        tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(cluster), task_type='chief', task_id=0, rpc_layer='grpc')))
    with coordinator.strategy.scope():
        layers = network.variables(options)
        optimizer = network.optimizer(options)
    flat = [variable for layer in layers for variable in layer]
    data = iter(coordinator.create_per_worker_dataset(lambda: network.dataset(options, seed=None)))

    def replica_step(batch):
        with tf.GradientTape() as tape:
            loss = network.loss(layers, *batch)
        optimizer.apply_gradients(zip(tape.gradient(loss, flat), flat))
        return loss

    @tf.function
    def steps_of_one(iterator):
        for _ in tf.range(options.steps_per_call - 1):
            coordinator.strategy.run(replica_step, args=(next(iterator),))
        return coordinator.strategy.run(replica_step, args=(next(iterator),))

    def steps(count):
        calls = [coordinator.schedule(steps_of_one, args=(data,))
                 for _ in range(math.ceil(count * options.workers / options.steps_per_call))]
        coordinator.join()
        return calls[-1].fetch()

    problem.train('coordinator', options, steps)


def main():
    options = problem.parse(__doc__, steps_per_call=(10, 'steps that a worker is handed at once'))
    addresses = [f'localhost:{port}' for port in ports.free_ports(options.workers + 2)]
    cluster = {'chief': addresses[:1], 'ps': addresses[1:2], 'worker': addresses[2:]}
    servers = [multiprocessing.get_context('spawn').Process(
        target=serve, args=(job, index, cluster), daemon=True)
               for job in ('ps', 'worker') for index in range(len(cluster[job]))]
    for server in servers:
        server.start()
    coordinate(options, cluster)
    for server in servers:
        server.kill()  # it would serve for ever


if __name__ == '__main__':
    main()
