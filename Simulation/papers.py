"""Papers' claims as experiments, by subject: what is simulated, what holds, and pictures."""

from papers_asynchronous import (Adagrad, Bound, Delay, Heterogeneity, Momentum, Sparse, Stability,
                                 Staleness)
from papers_synchronous import Backups, CriticalBatch, Liars, Scaling
from papers_windows import Elastic, Federated, Outer, Unequal, Windows

# In this order they are simulated, and told.
CLAIMS = [Staleness, Stability, Heterogeneity, Delay, Windows, Bound, Scaling, Backups, Elastic,
          Momentum, Unequal, Adagrad, CriticalBatch, Outer, Liars, Federated, Sparse]
