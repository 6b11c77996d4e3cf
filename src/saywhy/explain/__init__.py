"""Explanations of captions: which pixels and which earlier words support each word."""

from saywhy.explain.composites import Composite, composites
from saywhy.explain.explanation import Budget, Explanation, WordExplanation
from saywhy.explain.methods import METHODS

__all__ = ["METHODS", "Budget", "Composite", "Explanation", "WordExplanation", "composites"]
