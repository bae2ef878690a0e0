def device_memory_profile():
    return b"a profile"
