"""The Unix socket for actions: who asks, what is asked, and the worker that does it as that user."""
