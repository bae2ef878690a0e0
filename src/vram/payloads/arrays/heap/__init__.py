"""The heap of this process, looked through for what keeps an object alive."""
