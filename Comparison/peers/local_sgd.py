"""Local SGD in PyTorch on gloo: the workers average their parameters every ten steps.

    python Comparison/peers/local_sgd.py --steps=10000

The average is `PeriodicModelAverager` of PyTorch, without any exchange of gradients.
"""

import ddp
import problem

averagers = problem.load('torch.distributed.algorithms.model_averaging.averagers')
PERIOD = 10  # steps


def local(worker, options, address):
    """Is one of the workers; `address` is where they find each other, a host:port."""
    ddp.join(worker, options, address)
    network = ddp.network_of(options)
    averager = averagers.PeriodicModelAverager(period=PERIOD)
    ddp.train(worker, options, network, lambda: averager.average_parameters(network.parameters()))
    ddp.leave()


if __name__ == '__main__':
    ddp.main(local, __doc__)
