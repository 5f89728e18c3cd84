"""remat_lab: recomputation strategies you can hold, step through, watch and run."""

__version__ = "0.1.0"
