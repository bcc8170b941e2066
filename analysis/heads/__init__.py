"""What each head does: statistics, patterns, syntax, clusters, and what it is worth to the model."""
