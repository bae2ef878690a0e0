"""PyTorch's profiler in a traced program: it must see its kernels as if nothing else listened."""

from __future__ import annotations

import torch
from torch.profiler import ProfilerActivity, profile


def main() -> None:
    left = torch.ones(256, 256, device="cuda")
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        product = left @ left
        torch.cuda.synchronize()
    on_gpu = [each for each in profiler.events() if each.device_type == torch.autograd.DeviceType.CUDA]
    history = [torch.empty(3 << 20, dtype=torch.uint8, device="cuda") for _ in range(3)]
    assert float(product[0, 0]) == 256.0
    globals()["kept"] = history
    print(len(on_gpu), len(history), flush=True)


if __name__ == "__main__":
    main()
