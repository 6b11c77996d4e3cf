"""Drawing: colour maps, figures and pages from plain arrays; no captioner is imported here."""
