"""The command ``fit``, which predicts the memory usage of a step at sizes at which it has not run."""
