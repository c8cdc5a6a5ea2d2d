"""Prediction of the memory of a step at other sizes, from recordings of the step at small sizes.

It requires neither torch nor CUDA.
"""
