"""A program of a card, without any framework: how many multiprocessors has it? Then it ends, waits to be ended (`hold`) or
writes where nothing is (`fault`). One JSON object; the status is that of its context."""
import ctypes
import json
import sys
import time

CODE = b""".version 7.0
.target sm_70
.address_size 64
.visible .entry bad() { .reg .u64 %a; .reg .u32 %v; mov.u64 %a, 64; mov.u32 %v, 1; st.global.u32 [%a], %v; ret; }
"""
cuda = ctypes.CDLL("libcuda.so.1")
device, context, module, kernel, value = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
told = {"context": cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0) or cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device)}
if not told["context"]:
    cuda.cuDeviceGetAttribute(ctypes.byref(value), 16, device)
    told["multiprocessors"] = value.value
if "fault" in sys.argv and not told["context"]:
    cuda.cuModuleLoadData(ctypes.byref(module), CODE)
    cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"bad")
    cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None)
    told["error"] = cuda.cuCtxSynchronize()
print(json.dumps(told), flush=True)
if "hold" in sys.argv:
    time.sleep(600)
sys.exit(1 if told["context"] else 0)
