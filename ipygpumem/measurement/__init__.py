"""Code under measurement: readings at both ends, peaks, samples and the recording in between."""
