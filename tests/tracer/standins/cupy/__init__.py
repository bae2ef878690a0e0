"""What the payload uses of CuPy: hooks that belong to threads."""

import driver_program as driver

from cupy.cuda import memory_hook


def use(nbytes):
    """An array that comes and goes."""
    address = driver.alloc(nbytes).value
    for hook in list(memory_hook.hooks().values()):
        hook.malloc_postprocess(device_id=0, size=nbytes, mem_size=nbytes, mem_ptr=address, pmem_id=1)
    return address


def drop(nbytes, address):
    for hook in list(memory_hook.hooks().values()):
        hook.free_preprocess(device_id=0, mem_size=nbytes, mem_ptr=address, pmem_id=1)
    driver.call("cuMemFree_v2", driver.c_uint64(address))
