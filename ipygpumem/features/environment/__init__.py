"""Software versions and capabilities of this machine."""
