"""Captions and explanations of many images: inputs in parts, output that resumes after a crash, one machine or many."""
