"""Where memory figures are read: one module for each library, which alone imports it."""
