"""Trains a tiny model with Lightning; writes what its callback measured, as one line of JSON."""

import csv
import json
import sys
import time
from pathlib import Path

from wattsmith.flows.callbacks import lightning_callback
from wattsmith.terms.facts import as_plain

DATA_S, COMPUTE_S = 0.05, 0.1


def train(folder):
    import lightning
    import torch
    from lightning.pytorch.loggers import CSVLogger

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch, _):
            time.sleep(COMPUTE_S)
            loss = self.layer(batch).pow(2).mean()
            self.log("loss", loss)
            return loss

        def validation_step(self, *_):
            time.sleep(COMPUTE_S)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.0001)

    class Numbers(torch.utils.data.Dataset):
        def __len__(self):
            return 16

        def __getitem__(self, index):
            time.sleep(DATA_S / 2)  # a batch has two
            return torch.full((4,), float(index))

    callback = lightning_callback()
    logger = CSVLogger(folder)
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=logger,
        callbacks=[callback],
        log_every_n_steps=4,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    batches = torch.utils.data.DataLoader(Numbers(), batch_size=2)
    trainer.fit(Model(), batches, batches)
    with (Path(logger.log_dir) / "metrics.csv").open(newline="") as file:
        rows = [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]
    return {"history": rows, "run": as_plain(callback.meter.run), "epochs": as_plain(callback.meter.epochs)}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(train(sys.argv[1])) + "\n")
