"""What TensorFlow carries between two workers and a ps if nothing else is to be done."""

import multiprocessing
import statistics

import numpy as np
from measuring.runs import calls_per_second, TIME_LIMIT
from tfdist.start import ports

# What travels by itself, by the model: schemes send small variables together, see `transfer`.
SHAPES = {'digits': [[64 * 128 + 128 + 128 * 10 + 10]],
          'mnist': [[784, 500], [500, 500], [500 + 500 + 500 * 10 + 10]]}
_WARM_UP = 20  # trips that do not count


def size_of(shapes):
    """Returns how many bytes float32 parameters have, whose shapes are a list of lists of ints."""
    return 4 * sum(int(np.prod(shape)) for shape in shapes)


def measure(shapes, trips, workers=2):
    """Has each worker fetch the parameters, and send as much back, again and again.

    Args:
      shapes: list of lists of ints, of the parameters.
      trips: int, how often.
      workers: int.

    Returns:
      Dict of figures: trips/s, and MB/s both ways of all workers.
    """
    free = ports.free_ports(1 + workers)
    with multiprocessing.get_context('spawn').Pool(1 + workers) as pool:
        pool.apply_async(_serve, (free, shapes, None))
        rates = [pool.apply_async(_serve, (free, shapes, worker, trips))
                 for worker in range(workers)]
        rates = [rate.get(TIME_LIMIT) for rate in rates]
    return {'trips/s of each worker': statistics.mean(rates),
            'MB/s': sum(rates) * 2 * size_of(shapes) / 1e6}


def _serve(free, shapes, worker, trips=0):
    """Is a ps if `worker` is None, else a worker that makes trips; returns the trips/s."""
    from tfdist.start.quiet import tf
    hosts = [f'localhost:{port}' for port in free]
    config = tf.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    job, index = ('ps', 0) if worker is None else ('worker', worker)
    server = tf.train.Server({'ps': hosts[:1], 'worker': hosts[1:]}, job, index, config=config)
    if worker is None:
        server.join()
    with tf.device('/job:ps/task:0'):
        variables = [tf.get_variable(f'x{i}', shape, initializer=tf.zeros_initializer())
                     for i, shape in enumerate(shapes)]
        read = [variable.read_value() for variable in variables]
    with tf.device(f'/job:worker/task:{worker}'):
        there = [tf.identity(value) for value in read]
    with tf.device('/job:ps/task:0'):
        back = tf.group(*[tf.identity(value) for value in there])
    session_config = tf.ConfigProto(
        device_filters=['/job:ps', f'/job:worker/task:{worker}'])
    # Else nothing travels, because nothing is made of what arrives.
    session_config.graph_options.rewrite_options.disable_meta_optimizer = True
    with tf.Session(server.target, config=session_config) as session:
        session.run(tf.global_variables_initializer())
        return calls_per_second(session.make_callable(back), trips, _WARM_UP)
