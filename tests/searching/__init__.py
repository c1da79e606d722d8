"""Runs the protocols' own ops in orders drawn by a seed, see search.py."""
