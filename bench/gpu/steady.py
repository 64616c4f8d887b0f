"""Trains for some seconds and counts steps in each second of the wall clock, as tests/gpu/load.c does for kernels."""
import json
import sys
import time

import torch

seconds = int(sys.argv[1])
model = torch.nn.Sequential(*[m for _ in range(4) for m in (torch.nn.Linear(2048, 2048), torch.nn.ReLU())]).cuda()
best = torch.optim.SGD(model.parameters(), lr=1e-3)
x, y = torch.randn(8192, 2048, device="cuda"), torch.randn(8192, 2048, device="cuda")
done = [0] * (seconds + 1)
begin, start = time.monotonic(), int(time.time())
events = []
while time.monotonic() - begin < seconds:
    best.zero_grad(set_to_none=True)
    torch.nn.functional.mse_loss(model(x), y).backward()
    best.step()
    events.append(torch.cuda.Event())
    events[-1].record()
    if len(events) > 4:
        events.pop(0).synchronize()
        at = int(time.time()) - start
        if 0 <= at <= seconds:
            done[at] += 1
print(json.dumps({"from": start, "done": done}))
