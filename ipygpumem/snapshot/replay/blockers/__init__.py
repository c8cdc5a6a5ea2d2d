"""Analysis of requests that no free block could serve: the blocks in use that prevented it, and changes that help."""
