"""A training that is the same every time: prints its seconds, start of the process and of CUDA left out."""
import sys
import time

import torch

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 300
torch.manual_seed(1)
torch.backends.cuda.matmul.allow_tf32 = True
model = torch.nn.Sequential(*[m for _ in range(8) for m in (torch.nn.Linear(4096, 4096), torch.nn.GELU())]).cuda()
best = torch.optim.AdamW(model.parameters(), lr=1e-4)
x, y = torch.randn(4096, 4096, device="cuda"), torch.randn(4096, 4096, device="cuda")


def step():
    best.zero_grad(set_to_none=True)
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    best.step()
    return loss


for _ in range(10):
    step()
torch.cuda.synchronize()
begin = time.monotonic()
for _ in range(steps):
    loss = step()
loss.item()
print(f"{time.monotonic() - begin:.4f}")
