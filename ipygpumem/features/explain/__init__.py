"""From the memory that nvidia-smi reports to the memory that PyTorch reports."""
