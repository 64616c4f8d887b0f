"""Many small kernels, as when a language model answers one token after another: a decoder with a cache, one token at a
time; its step captured once and launched as a graph, as servers do, and launched kernel by kernel. Prints tokens a
second of several rounds of each. Kernel by kernel it is Python's speed that is measured, which is another in every process."""
import json
import sys
import time

import torch

rounds, tokens = int(sys.argv[1]), 256
torch.manual_seed(1)
dim, heads, layers, batch, room = 1024, 16, 24, 8, 256
half = {"device": "cuda", "dtype": torch.float16}


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = torch.nn.LayerNorm(dim, **half), torch.nn.LayerNorm(dim, **half)
        self.qkv, self.out = torch.nn.Linear(dim, 3 * dim, **half), torch.nn.Linear(dim, dim, **half)
        self.up, self.down = torch.nn.Linear(dim, 4 * dim, **half), torch.nn.Linear(4 * dim, dim, **half)
        self.keys = torch.zeros(batch, heads, room, dim // heads, **half)
        self.values = torch.zeros_like(self.keys)

    def forward(self, x, at, seen):
        q, k, v = self.qkv(self.n1(x)).view(batch, 3, heads, dim // heads).unbind(1)
        self.keys.index_copy_(2, at, k[:, :, None])
        self.values.index_copy_(2, at, v[:, :, None])
        a = torch.nn.functional.scaled_dot_product_attention(q[:, :, None], self.keys, self.values, attn_mask=seen)
        x = x + self.out(a.reshape(batch, dim))
        return x + self.down(torch.nn.functional.gelu(self.up(self.n2(x))))


with torch.inference_mode():
    model = torch.nn.ModuleList([Layer() for _ in range(layers)])
    words = torch.nn.Embedding(32000, dim, **half)
    token = torch.zeros(batch, dtype=torch.long, device="cuda")
    at = torch.zeros(1, dtype=torch.long, device="cuda")
    places = torch.arange(room, device="cuda")

    def step():
        x, seen = words(token), (places <= at)[None, None, None]
        for layer in model:
            x = layer(x, at, seen)
        token.copy_((x @ words.weight.T).argmax(-1))
        at.add_(1).remainder_(room)

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def rate(launch, n):
        torch.cuda.synchronize()
        begin = time.monotonic()
        for _ in range(n):
            launch()
        torch.cuda.synchronize()
        return round(batch * n / (time.monotonic() - begin), 1)

    rate(graph.replay, tokens)
    told = {"graph": [rate(graph.replay, 4 * tokens) for _ in range(rounds)], "eager": [rate(step, tokens) for _ in range(2)]}
print(json.dumps(told))
