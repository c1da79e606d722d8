"""Horovod on gloo, in TensorFlow 1.15: each step applies the mean of all gradients.

    python Comparison/peers/horovod_sgd.py --model=mnist --steps=500

The program starts itself again, by Horovod's own launcher, once for each worker.
"""

import os
import sys

import problem
import tensorflow_network as network

tf = problem.load('tensorflow.compat.v1')
hvd = problem.load('horovod.tensorflow')


def work(options):
    """Is one of the workers that Horovod has started."""
    hvd.init()
    optimizer = hvd.DistributedOptimizer(network.optimizer(options))
    data = network.dataset(options, hvd.rank(), hvd.size())
    loss = network.loss(network.variables(options),
                        *tf.data.make_one_shot_iterator(data).get_next())
    train_op = optimizer.minimize(loss)
    with tf.Session(config=network.threads()) as session:
        session.run(tf.global_variables_initializer())  # they are the same on all workers
        run = session.make_callable([train_op, loss])

        def steps(count):
            for _ in range(count):
                _, last = run()
            return last

        problem.train(f'worker {hvd.rank()}', options, steps)


def main():
    options = problem.parse(__doc__)
    if 'HOROVOD_RANK' in os.environ:
        work(options)
        return
    loopback = 'lo' if os.path.isdir('/sys/class/net/lo') else 'lo0'
    os.execv(sys.executable, [sys.executable, '-m', 'horovod.runner.launch', '--gloo',
                              '-np', str(options.workers), '--network-interfaces', loopback,
                              sys.executable, *sys.argv])


if __name__ == '__main__':
    main()
