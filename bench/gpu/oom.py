"""Takes memory until torch says that there is none, and goes on: prints what it was told and what it had."""
import json
import sys

import torch

free, total = torch.cuda.mem_get_info()
kept, error = [], None
try:
    while len(kept) < 64:
        kept.append(torch.empty(256 << 20, dtype=torch.uint8, device="cuda").fill_(1))
except torch.cuda.OutOfMemoryError as e:
    error = type(e).__name__
had = len(kept) * 256
del kept
torch.cuda.empty_cache()
x = torch.randn(1024, 1024, device="cuda")
print(json.dumps({"backend": torch.cuda.get_allocator_backend(), "conf": sys.argv[1], "told_mib": total >> 20, "told_free_mib": free >> 20,
                  "error": error, "had_mib": had, "lives_on": bool(torch.isfinite((x @ x).sum()).item())}))
