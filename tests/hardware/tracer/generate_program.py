"""A small transformer with random weights that generates: a KV cache that grows with each token, dropped
with each sequence. It goes on until a line comes; with "growing" it keeps the logits of every 16th token."""

from __future__ import annotations

import sys
import threading

import torch
from torch import nn

WIDTH, HEADS, LAYERS, VOCABULARY, BATCH, TOKENS = 1024, 16, 6, 32_000, 8, 32

Cache = list[tuple[torch.Tensor, torch.Tensor]]


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor, cache: Cache, number: int) -> torch.Tensor:
        query, key, value = (
            part.view(BATCH, -1, HEADS, WIDTH // HEADS).transpose(1, 2) for part in self.qkv(x).chunk(3, -1)
        )
        key, value = extend(cache, number, key, value)
        attended = nn.functional.scaled_dot_product_attention(query, key, value)
        x = x + self.out(attended.transpose(1, 2).reshape(BATCH, -1, WIDTH))
        return x + self.mlp(x)


def extend(
    cache: Cache, number: int, key: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    if number < len(cache):
        key = torch.cat([cache[number][0], key], 2)  # KV cache
        value = torch.cat([cache[number][1], value], 2)
        cache[number] = key, value
    else:
        cache.append((key, value))
    return key, value


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, tokens: torch.Tensor, cache: Cache) -> torch.Tensor:
        x = self.embedding(tokens)
        for number, layer in enumerate(self.layers):
            x = layer(x, cache, number)
        return nn.functional.linear(x, self.embedding.weight)


def remember(log: list[torch.Tensor], logits: torch.Tensor) -> None:
    log.append(logits.clone())  # planted growth


@torch.no_grad()
def generate(model: Model, log: list[torch.Tensor]) -> None:
    tokens, cache = torch.zeros(BATCH, 1, dtype=torch.long, device="cuda"), Cache()
    for number in range(TOKENS):
        logits = model(tokens, cache)[:, -1]
        tokens = logits.argmax(-1, keepdim=True)
        if "growing" in sys.argv and number % 16 == 0:
            remember(log, logits)


def main() -> None:
    model, log = Model().cuda(), list[torch.Tensor]()
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), stop.set()), daemon=True).start()
    sequences = 0
    while not stop.is_set():
        generate(model, log)
        sequences += 1
        if sequences == 3:
            torch.cuda.synchronize()
            print("ready", flush=True)
    print(sequences, len(log), flush=True)


if __name__ == "__main__":
    main()
