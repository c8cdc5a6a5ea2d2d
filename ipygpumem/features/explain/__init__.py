"""Explain why nvidia-smi and PyTorch report different amounts of memory."""
