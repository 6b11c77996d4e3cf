"""Why each word: explanations over pixels and over earlier words."""

from saywhy.explain.composites import Composite, composites
from saywhy.explain.explanation import Budget, Explanation, Word
from saywhy.explain.methods import METHODS

__all__ = ["METHODS", "Budget", "Composite", "Explanation", "Word", "composites"]
