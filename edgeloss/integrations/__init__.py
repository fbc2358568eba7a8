"""Thin adapters for frameworks, a module each. Nothing here is imported by ``import edgeloss``."""
