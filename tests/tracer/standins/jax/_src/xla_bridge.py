class Device:
    id = local_hardware_id = 0

    def memory_stats(self):
        return {"bytes_in_use": 3, "pool_bytes": 7}


class Backend:
    def local_devices(self):
        return [Device()]


_backends = {"cpu": None}
