"""Prediction of the memory usage of a step at other sizes, from recordings at small sizes, without torch or CUDA."""
