"""Memory usage by torch.nn.Module and by phase of a training step."""
