"""TensorFlow 2's MultiWorkerMirroredStrategy: each step applies the mean of all gradients.

    python Comparison/peers/multi_worker_mirrored.py --model=mnist --steps=300

The gradients go around the ring of TensorFlow's collectives; NCCL needs GPUs.
"""

import json
import os

import problem
from tfdist.start import ports
import tensorflow_network as network

tf = problem.load('tensorflow')


def work(worker, options, addresses):
    """Is one of the workers, at addresses, a list of strings."""
    os.environ['TF_CONFIG'] = json.dumps({'cluster': {'worker': addresses},
                                          'task': {'type': 'worker', 'index': worker}})
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    ring = tf.distribute.experimental.CommunicationImplementation.RING
    strategy = tf.distribute.MultiWorkerMirroredStrategy(
        communication_options=tf.distribute.experimental.CommunicationOptions(implementation=ring))
    with strategy.scope():
        layers = network.variables(options)
    data = iter(strategy.distribute_datasets_from_function(
        lambda _: network.dataset(options, worker, options.workers)))

    flat = [variable for layer in layers for variable in layer]
    rate = problem.NETWORKS[options.model].learning_rate

    def apply(strategy, gradients):
        for variable, gradient in zip(flat, gradients):
            strategy.extended.update(variable, lambda own, mean: own.assign_sub(rate * mean),
                                     args=(gradient,))

    def replica_step(batch):
        with tf.GradientTape() as tape:
            loss = network.loss(layers, *batch)
        replica = tf.distribute.get_replica_context()
        replica.merge_call(apply, args=(replica.all_reduce(tf.distribute.ReduceOp.MEAN,
                                                           tape.gradient(loss, flat)),))
        return loss

    @tf.function
    def step():
        return strategy.run(replica_step, args=(next(data),))

    def steps(count):
        for _ in range(count):
            loss = step()
        return strategy.experimental_local_results(loss)[0].numpy()

    problem.train(f'worker {worker}', options, steps)


if __name__ == '__main__':
    parsed = problem.parse(__doc__)
    where = [f'localhost:{port}' for port in ports.free_ports(parsed.workers)]
    problem.in_processes([(work, (i, parsed, where)) for i in range(parsed.workers)])
