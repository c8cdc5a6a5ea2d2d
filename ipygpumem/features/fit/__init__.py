"""The command ``fit``, which predicts the memory usage of a step at sizes that have not been run."""
