"""Hallucinated object words: labels from references, and the risk that a word is made up."""
