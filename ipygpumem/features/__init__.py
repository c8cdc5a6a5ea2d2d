"""Features of the package, with a subpackage for each."""
