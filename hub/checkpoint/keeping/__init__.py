"""How checkpoints are looked after: protected, pruned, proven, carried away."""
