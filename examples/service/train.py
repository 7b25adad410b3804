"""What job.yaml runs: trains a small network on made-up numbers, and tells the service about each step."""

import argparse
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn


def network():
    return nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


def main():
    options = argparse.ArgumentParser(description="Train a small network on made-up numbers.")
    options.add_argument("--steps", type=int, default=200)
    options.add_argument("--batch", type=int, default=64)
    asked = options.parse_args()

    torch.manual_seed(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = network().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    middles = torch.randn(10, 256, device=device)
    # Without a service there is nobody to tell, and the script runs as it is.
    with Path(os.environ.get("WATTSMITH_PROGRESS", os.devnull)).open("w") as progress:
        for step in range(1, asked.steps + 1):
            kinds = torch.randint(0, 10, (asked.batch,), device=device)
            told = model(middles[kinds] + torch.randn(asked.batch, 256, device=device))
            loss = nn.functional.cross_entropy(told, kinds)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(time.time(), file=progress, flush=True)
            if step % 50 == 0:
                print(f"step {step}: loss {loss.item():.3f}", flush=True)
    torch.save(model.state_dict(), "model.pt")  # into the folder of this attempt
    return 0 if loss.item() < 1.0 else 1  # above, it has not learned: the service tries once more, as job.yaml says


if __name__ == "__main__":
    sys.exit(main())
