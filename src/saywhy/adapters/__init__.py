"""Captioners of Hugging Face transformers behind saywhy's captioner interface."""
