import threading

_local = threading.local()


def hooks():
    return _local.__dict__.setdefault("hooks", {})


class MemoryHook:
    name = "MemoryHook"

    def __enter__(self):
        if self.name in hooks():
            raise KeyError(self.name)
        hooks()[self.name] = self
        return self

    def __exit__(self, *_):
        del hooks()[self.name]
