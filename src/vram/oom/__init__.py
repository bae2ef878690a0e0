"""Out-of-memory messages: found in any log, read in any dialect, judged by their own arithmetic."""
