"""Energy of a Hugging Face Trainer's run in its own logs: by step, epoch, evaluation and run.

    pip install . transformers accelerate    # in a copy of the repository
    python hugging_face_trainer.py
    python hugging_face_trainer.py --meters modelled:10W-65W    # a CPU without a meter, by a stated model

The model is a small BERT that starts from chance; whether the words of a made-up row are low or high has to be told.
"""

import argparse
import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import wattsmith

WORDS, LENGTH = 100, 16


def rows(count, seed):
    chance = torch.Generator().manual_seed(seed)
    high = torch.randint(0, 2, (count,), generator=chance)
    words = torch.randint(0, WORDS // 2, (count, LENGTH), generator=chance) + high[:, None] * WORDS // 2
    return [{"input_ids": row, "labels": label} for row, label in zip(words, high, strict=True)]


def main():
    options = argparse.ArgumentParser(description="Train a small BERT with Hugging Face's Trainer.")
    options.add_argument("--epochs", type=int, default=2)
    options.add_argument("--rows", type=int, default=512)
    options.add_argument("--meters", default="auto")
    asked = options.parse_args()

    small = BertConfig(
        vocab_size=WORDS, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            num_train_epochs=asked.epochs,
            per_device_train_batch_size=32,
            learning_rate=1e-3,
            logging_steps=8,
            eval_strategy="epoch",
            save_strategy="no",
            report_to=[],
            dataloader_pin_memory=torch.cuda.is_available(),
            disable_tqdm=True,
        )
        callback = wattsmith.trainer_callback(meters=asked.meters)
        trainer = Trainer(
            model=BertForSequenceClassification(small),
            args=arguments,
            train_dataset=rows(asked.rows, seed=1),
            eval_dataset=rows(128, seed=2),
            callbacks=[callback],
        )
        trainer.train()

    # What it logs stands in the Trainer's history; nothing where energy is unknown.
    told = {name: value for row in trainer.state.log_history for name, value in row.items() if "_energy_j" in name}
    print("\n".join(f"{name} {value:.3g}" for name, value in told.items()) or "no energy was logged")
    for window in (*callback.meter.epochs, callback.meter.run):
        print(window)


if __name__ == "__main__":
    main()
