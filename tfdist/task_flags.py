"""Flags of every task of a cluster, whatever it does."""

from absl import flags

FLAGS = flags.FLAGS
flags.DEFINE_integer('num_threads', 0, "threads in each of TensorFlow's two pools; 0: one per core",
                     lower_bound=0, upper_bound=1024)
flags.DEFINE_float('patience_secs', 300, 'how long to wait for a task that does not answer',
                   lower_bound=0)
