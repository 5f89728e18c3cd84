"""Benchmark networks in torch, and readers of graph files.

Importing this package does not import torch: the networks are loaded when one is asked for.
"""

from .files import load_graph

__all__ = ["load_graph"]
