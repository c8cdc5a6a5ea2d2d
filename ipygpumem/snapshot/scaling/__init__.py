"""Prediction of the memory of a step at other sizes, from recordings at small sizes, without torch and CUDA."""
