"""Papers' claims as experiments, by subject: what is simulated, what holds, and pictures."""

from papers_asynchronous import (Adagrad, Bound, Delay, Heterogeneity, Momentum, Sparse, Stability,
                                 Staleness)
from papers_networks import Compression, Gossip, Neighbours, Streaming
from papers_synchronous import Backups, CriticalBatch, Liars, Scaling
from papers_windows import Elastic, Federated, Outer, Unequal, Windows

# In this order they are simulated, and told.
CLAIMS = [Staleness, Stability, Heterogeneity, Delay, Scaling, Backups, Bound, Elastic, Windows,
          Momentum, Adagrad, Unequal, CriticalBatch, Liars, Federated, Outer, Sparse, Compression,
          Streaming, Gossip, Neighbours]
