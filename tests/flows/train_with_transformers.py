"""Trains a tiny model with Hugging Face's Trainer; writes what its callback measured, as one line of JSON."""

import json
import sys
import time

from wattsmith.flows.callbacks import trainer_callback
from wattsmith.terms.facts import as_plain

DATA_S, COMPUTE_S = 0.05, 0.1


def train(folder):
    import torch
    from transformers import Trainer, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def forward(self, x, labels):
            time.sleep(COMPUTE_S)
            return {"loss": ((self.layer(x) - labels) ** 2).mean()}

    class Numbers(torch.utils.data.Dataset):
        def __len__(self):
            return 16

        def __getitem__(self, index):
            time.sleep(DATA_S / 2)  # a batch has two
            return {"x": torch.full((4,), float(index)), "labels": torch.tensor([1.0])}

    arguments = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=2,
        num_train_epochs=2,
        logging_steps=4,
        eval_strategy="epoch",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    callback = trainer_callback()
    trainer = Trainer(model=Model(), args=arguments, train_dataset=Numbers(), eval_dataset=Numbers())
    trainer.add_callback(callback)
    trained = trainer.train()
    return {
        "history": trainer.state.log_history,
        "metrics": trained.metrics,
        "run": as_plain(callback.meter.run),
        "epochs": as_plain(callback.meter.epochs),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(train(sys.argv[1])) + "\n")
