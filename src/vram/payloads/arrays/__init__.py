"""Arrays on GPUs and who refers to them, in this process."""
