"""Recognition of possible secrets by their names and by their form."""
