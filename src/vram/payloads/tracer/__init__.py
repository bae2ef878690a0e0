"""What runs inside a traced program, beside the recorder."""
