"""A trained captioner at work: `saywhy.load()`, and the path from image files to batches."""
