"""Train a small convolutional network, fed by workers, and say what it took.

    python train_cnn.py
    python train_cnn.py --meters modelled:10W-65W    # a CPU without a meter, by a stated model

The images are made up: noise with one bright quarter, and which quarter it is has to be told.
"""

import argparse

import torch
from torch import nn

import wattsmith


class Quarters(torch.utils.data.Dataset):
    """Image N is the same in every epoch, but for a flip upside down. Chance comes from torch, so it repeats."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        if not 0 <= number < self.count:
            raise IndexError(number)
        image = torch.randn(3, 32, 32, generator=torch.Generator().manual_seed(number))
        row, column = divmod(number % 4, 2)
        image[:, 16 * row : 16 * row + 16, 16 * column : 16 * column + 16] += 0.5
        if torch.rand(()) < 0.5:
            image, row = image.flip(1), 1 - row
        return image, 2 * row + column


def network():
    def block(depth, filters):
        return [nn.Conv2d(depth, filters, 3, padding=1), nn.BatchNorm2d(filters), nn.ReLU(), nn.MaxPool2d(2)]

    return nn.Sequential(*block(3, 16), *block(16, 32), nn.Flatten(), nn.Linear(32 * 8 * 8, 4))


def main():
    options = argparse.ArgumentParser(description="Train a small convolutional network on made-up images.")
    options.add_argument("--epochs", type=int, default=2)
    options.add_argument("--images", type=int, default=1024)
    options.add_argument("--batch", type=int, default=64)
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--meters", default="auto")
    asked = options.parse_args()

    torch.manual_seed(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = network().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    with wattsmith.measure("training", meters=asked.meters) as window:
        # A DataLoader's arguments. With the window, waiting for data is its phase "data".
        feeder = wattsmith.Feeder(
            Quarters(asked.images),
            asked.batch,
            shuffle=True,
            num_workers=asked.workers,
            pin_memory=device == "cuda",
            persistent_workers=asked.workers > 0,
            seed=1,
            window=window,
        )
        for epoch in range(1, asked.epochs + 1):
            right = torch.zeros((), device=device)
            for images, quarters in feeder:
                images, quarters = images.to(device, non_blocking=True), quarters.to(device, non_blocking=True)
                told = model(images)
                loss = nn.functional.cross_entropy(told, quarters)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                right += (told.argmax(1) == quarters).sum()
            # Asking for a number waits for the GPU, so that nothing is left to do when the window ends.
            print(f"epoch {epoch}: loss {loss.item():.3f}, {right.item() / asked.images:.1%} right")

    print(feeder.report())
    print(window)
    if window.energy_j is not None:
        print(f"{window.energy_j / (asked.epochs * asked.images):.3g} J an image")


if __name__ == "__main__":
    main()
