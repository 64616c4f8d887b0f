"""Many small kernels, as when a language model answers one token after another: a decoder with a cache, one token at a
time, nothing captured. Prints tokens a second of each of several rounds."""
import json
import sys
import time

import torch

rounds, tokens = int(sys.argv[1]), 128
torch.manual_seed(1)
dim, heads, layers, batch, room = 1024, 16, 24, 8, 512
half = {"device": "cuda", "dtype": torch.float16}


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = torch.nn.LayerNorm(dim, **half), torch.nn.LayerNorm(dim, **half)
        self.qkv, self.out = torch.nn.Linear(dim, 3 * dim, **half), torch.nn.Linear(dim, dim, **half)
        self.up, self.down = torch.nn.Linear(dim, 4 * dim, **half), torch.nn.Linear(4 * dim, dim, **half)
        self.keys = torch.zeros(batch, heads, room, dim // heads, **half)
        self.values = torch.zeros_like(self.keys)

    def forward(self, x, at):
        q, k, v = self.qkv(self.n1(x)).view(batch, 3, heads, dim // heads).unbind(1)
        self.keys[:, :, at], self.values[:, :, at] = k, v
        a = torch.nn.functional.scaled_dot_product_attention(q[:, :, None], self.keys[:, :, :at + 1], self.values[:, :, :at + 1])
        x = x + self.out(a.reshape(batch, dim))
        return x + self.down(torch.nn.functional.gelu(self.up(self.n2(x))))


with torch.inference_mode():
    model = torch.nn.ModuleList([Layer() for _ in range(layers)])
    words = torch.nn.Embedding(32000, dim, **half)
    rates = []
    for number in range(rounds + 1):
        token = torch.zeros(batch, dtype=torch.long, device="cuda")
        torch.cuda.synchronize()
        begin = time.monotonic()
        for at in range(tokens):
            x = words(token)
            for layer in model:
                x = layer(x, at)
            token = (x @ words.weight.T).argmax(-1)
        torch.cuda.synchronize()
        if number:
            rates.append(round(batch * tokens / (time.monotonic() - begin), 1))
print(json.dumps(rates))
