"""What is timed: a few searches."""

import sys

sys.path.append(".")

import search

for word in ("reqests", "numpi", "pandsa"):
    search.search(word, ["requests", "numpy", "pandas"])
