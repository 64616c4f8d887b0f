"""What a notebook does to a card: holds memory, and computes now and then (`busy`) or never again (`idle`)."""
import sys
import time

import torch

kept = torch.ones(1 << 28, device="cuda")
torch.cuda.synchronize()
print("holds", flush=True)
for _ in range(int(sys.argv[2]) * 2):
    if sys.argv[1] == "busy":
        for _ in range(20):
            kept.mul_(1.0001)
        torch.cuda.synchronize()
    time.sleep(0.5)
print("went on to the end", flush=True)
