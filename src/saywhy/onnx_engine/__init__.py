"""Captioning with ONNX Runtime: export of a model, and an engine that needs no torch."""
