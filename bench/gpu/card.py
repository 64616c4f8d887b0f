"""The card as its driver's own library tells it, from outside of any task. Standard library only."""
import ctypes
import threading
import time


class Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Card:
    def __init__(self, index=0):
        self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
        self.handle = ctypes.c_void_p()
        if self.nvml.nvmlInit_v2() or self.nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(self.handle)):
            raise SystemExit("there is no card")

    def _text(self, name, *before):
        out = ctypes.create_string_buffer(96)
        getattr(self.nvml, name)(*before, out, 96)
        return out.value.decode()

    def name(self):
        return self._text("nvmlDeviceGetName", self.handle)

    def driver(self):
        return self._text("nvmlSystemGetDriverVersion")

    def used(self):
        memory = Memory()
        self.nvml.nvmlDeviceGetMemoryInfo(self.handle, ctypes.byref(memory))
        return memory.used

    def energy_mj(self):
        value = ctypes.c_ulonglong()
        self.nvml.nvmlDeviceGetTotalEnergyConsumption(self.handle, ctypes.byref(value))
        return value.value


class Highest:
    """The most memory of the card that was in use while this was open, by looking as often as the driver answers."""

    def __init__(self, card):
        self.card, self.before = card, card.used()
        self.most, self.looks, self.open = self.before, 0, True
        self.thread = threading.Thread(target=self.look)

    def look(self):
        while self.open:
            self.most = max(self.most, self.card.used())
            self.looks += 1
            time.sleep(0.002)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.open = False
        self.thread.join()

    def mib(self):
        return round((self.most - self.before) / 2**20, 1)
