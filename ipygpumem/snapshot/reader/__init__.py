"""Readers that convert an untrusted file to columns without executing its contents."""
