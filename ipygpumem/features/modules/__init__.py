"""Memory usage of a model by ``torch.nn.Module`` and by phase of a training step."""
