"""Who is in the cluster, who is alive, and how a run ends."""
