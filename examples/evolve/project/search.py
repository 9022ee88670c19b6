"""A small agent's search: it looks for packages by name, and is slow about it."""


def distance(one, other):
    """How many letters have to change (Levenshtein), the plain way."""
    if not one or not other:
        return len(one) + len(other)
    if one[0] == other[0]:
        return distance(one[1:], other[1:])
    return 1 + min(distance(one[1:], other), distance(one, other[1:]), distance(one[1:], other[1:]))


def search(word, names):
    """The name that is nearest to a word; the first of those that are equally near."""
    return min(names, key=lambda name: distance(word, name))
