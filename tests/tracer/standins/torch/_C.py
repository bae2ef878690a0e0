"""The binary part."""

observers = []
history = []


def _cuda_record_memory_history(*arguments):
    raise AssertionError("torch.cuda.memory is asked")


def _cuda_isHistoryEnabled():
    return bool(history) and history[-1].get("enabled") is not None


def _cuda_attach_out_of_memory_observer(observer):
    observers.append(observer)
