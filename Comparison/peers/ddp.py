"""PyTorch's DistributedDataParallel on gloo: each step applies the mean of all gradients.

    python Comparison/peers/ddp.py --model=mnist --steps=500

The workers are processes of this machine, which reach each other over loopback. With RANK,
MASTER_ADDR and MASTER_PORT in its environment, as torchrun sets them, it is one worker of several
hosts.
"""

import datetime
import os
import sys

import problem
import torch_resnet
from tfdist.start import ports

torch = problem.load('torch')
dist = torch.distributed
LIMIT = datetime.timedelta(seconds=60)  # for each exchange


def join(worker, options, address):
    """Makes this process one of the workers, with one thread; see `distributed`."""
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    loopback = 'lo' if os.path.isdir('/sys/class/net/lo') else 'lo0'
    os.environ.setdefault('GLOO_SOCKET_IFNAME', loopback)
    dist.init_process_group('gloo', f'tcp://{address}', rank=worker,
                            world_size=options.workers, timeout=LIMIT)


def network_of(options):
    """Returns the network, a `torch.nn.Module` of [batch_size, pixels] float32."""
    sizes = problem.NETWORKS[options.model].sizes
    if not sizes:
        torch.manual_seed(problem.SEED)
        return torch_resnet.network()
    layers = []
    for weights, biases in problem.initial(sizes):
        layer = torch.nn.Linear(*weights.shape)
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(weights.T))
            layer.bias.copy_(torch.from_numpy(biases))
        layers += [layer, torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def train(worker, options, network, exchange=lambda: None):
    """Trains a network, a `torch.nn.Module`, and calls `exchange` after each step."""
    sizes, rate, _ = problem.NETWORKS[options.model]
    optimizer = torch.optim.SGD(
        network.parameters() if sizes else torch_resnet.parameters(network), lr=rate)
    batches = problem.batches(*problem.shard(options, worker, options.workers), worker)

    def steps(count):
        for _ in range(count):
            images, labels = map(torch.from_numpy, next(batches))
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(network(images), labels)
            loss.backward()
            optimizer.step()
            exchange()
        return loss.item()

    problem.train(f'worker {worker}', options, steps)


def distributed(worker, options, address):
    """Is one of the workers; `address` is where they find each other, a host:port."""
    join(worker, options, address)
    train(worker, options, torch.nn.parallel.DistributedDataParallel(
        network_of(options), gradient_as_bucket_view=True))
    leave()


def leave():
    """Ends this process when all workers are here; at a usual exit gloo's threads may abort it."""
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


def main(worker_function, doc):
    """Runs `worker_function`, which is as `distributed`, in this process or one for each worker."""
    options = problem.parse(doc, sorted(problem.NETWORKS))
    if 'RANK' in os.environ:
        worker_function(int(os.environ['RANK']), options,
                        '{MASTER_ADDR}:{MASTER_PORT}'.format(**os.environ))
        return
    port, = ports.free_ports(1)
    problem.in_processes([(worker_function, (worker, options, f'localhost:{port}'))
                          for worker in range(options.workers)])


if __name__ == '__main__':
    main(distributed, __doc__)
