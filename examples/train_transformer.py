"""Train a small causal transformer, one measured window per epoch, and go on where a run was stopped.

    python train_transformer.py --state run.pt
    python train_transformer.py --state run.pt    # goes on: same order of the data, also with other workers

The texts are made up: numbers that count upwards from a random one, by a random step. The next one has to be told.
"""

import argparse
from pathlib import Path

import torch
from torch import nn

import wattsmith

WORDS, LENGTH = 64, 24


class Counting(torch.utils.data.Dataset):
    """Rows such as 3, 5, 7, …, modulo the number of words."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        if not 0 <= number < self.count:
            raise IndexError(number)
        first, step = divmod(number * 2654435761 % 2**32 // 7, WORDS)
        return (first + (1 + step % 4) * torch.arange(LENGTH + 1)) % WORDS


class Transformer(nn.Module):
    def __init__(self, width=64, layers=2):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(LENGTH, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.told = nn.Linear(width, WORDS)

    def forward(self, rows):
        places = torch.arange(rows.shape[1], device=rows.device)
        later = nn.Transformer.generate_square_subsequent_mask(rows.shape[1], device=rows.device)
        return self.told(self.layers(self.words(rows) + self.places(places), mask=later, is_causal=True))


def main():
    options = argparse.ArgumentParser(description="Train a small causal transformer on made-up rows of numbers.")
    options.add_argument("--epochs", type=int, default=2, help="of this run")
    options.add_argument("--rows", type=int, default=2048)
    options.add_argument("--batch", type=int, default=64)
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--meters", default="auto")
    options.add_argument("--state", type=Path, help="where the run is kept, and found again")
    asked = options.parse_args()

    torch.manual_seed(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Transformer().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    feeder = wattsmith.Feeder(
        Counting(asked.rows),
        asked.batch,
        shuffle=True,
        num_workers=asked.workers,
        pin_memory=device == "cuda",
        persistent_workers=asked.workers > 0,
        seed=1,
    )
    done = 0
    if asked.state and asked.state.exists():
        kept = torch.load(asked.state, map_location=device)
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        feeder.load_state_dict(kept["data"])  # together with the model: each row is learned from once per epoch
        done = kept["epochs"]

    for epoch in range(done + 1, done + asked.epochs + 1):
        with wattsmith.measure(f"epoch {epoch}", meters=asked.meters, sync=True) as window:
            for rows in feeder:
                rows = rows.to(device, non_blocking=True)
                told = model(rows[:, :-1])
                loss = nn.functional.cross_entropy(told.flatten(0, 1), rows[:, 1:].flatten())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        print(f"loss {loss.item():.3f}, {asked.rows * LENGTH / window.duration_s:.0f} words a second, {window}")
    print(feeder.report())
    if asked.state:
        kept = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "data": feeder.state_dict()}
        torch.save(kept | {"epochs": done + asked.epochs}, asked.state)


if __name__ == "__main__":
    main()
