"""Energy of a Lightning run in its own logs: by step, epoch, evaluation and run; fed by a Feeder.

    pip install . lightning    # in a copy of the repository
    python lightning_trainer.py
    python lightning_trainer.py --meters modelled:10W-65W    # a CPU without a meter, by a stated model

The data are made up: points, and whether they lie inside of a circle.
"""

import argparse
import csv
import tempfile
from pathlib import Path

import lightning
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn

import wattsmith


class Inside(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def training_step(self, batch, _):
        loss = self._loss(batch)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, _):
        self.log("validation_loss", self._loss(batch))

    def _loss(self, batch):
        points, inside = batch
        return nn.functional.binary_cross_entropy_with_logits(self.layers(points).squeeze(1), inside)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def points(count, seed):
    places = torch.rand(count, 2, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return torch.utils.data.TensorDataset(places, (places.square().sum(1) < 0.6).float())


def main():
    options = argparse.ArgumentParser(description="Train a small network with Lightning.")
    options.add_argument("--epochs", type=int, default=2)
    options.add_argument("--points", type=int, default=4096)
    options.add_argument("--meters", default="auto")
    asked = options.parse_args()

    lightning.seed_everything(1, verbose=False)
    callback = wattsmith.lightning_callback(meters=asked.meters)
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            max_epochs=asked.epochs,
            logger=CSVLogger(folder),
            callbacks=[callback],
            log_every_n_steps=8,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        # A Feeder is a DataLoader, so that Lightning takes it as one.
        workers = {"num_workers": 1, "persistent_workers": True}
        training = wattsmith.Feeder(points(asked.points, seed=1), 128, shuffle=True, seed=1, **workers)
        trainer.fit(Inside(), training, wattsmith.Feeder(points(512, seed=2), 256, **workers))
        with (Path(trainer.logger.log_dir) / "metrics.csv").open(newline="") as file:
            history = list(csv.DictReader(file))

    # What it logs goes to the run's loggers; nothing where energy is unknown.
    told = {name: float(value) for row in history for name, value in row.items() if "_energy_j" in name and value}
    print("\n".join(f"{name} {value:.3g}" for name, value in told.items()) or "no energy was logged")
    print(f"validation loss {trainer.callback_metrics['validation_loss']:.3f}")
    for window in (*callback.meter.epochs, callback.meter.run):
        print(window)


if __name__ == "__main__":
    main()
