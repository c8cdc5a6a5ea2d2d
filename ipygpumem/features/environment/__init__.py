"""Software versions, devices and the accuracy of measured values on this machine."""
