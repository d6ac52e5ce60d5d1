"""Where checkpoints lie: the side git directory or the shadow store, objects, refs, what a checkpoint says."""
