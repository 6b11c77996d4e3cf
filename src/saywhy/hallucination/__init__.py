"""Hallucinated object words: labels from reference captions, and the risk that a word is hallucinated."""
