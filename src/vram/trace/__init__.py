"""The tracer: starts and stops the recorder in other processes, and reads what it wrote."""
