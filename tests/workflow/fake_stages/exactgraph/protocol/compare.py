"""Comparison of two traces."""


def same(first: object, second: object) -> bool:
    return first == second
